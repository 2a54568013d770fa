"""Messages without a server: read as the server reads them, and refused by the name of the part that is at fault."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.api.conversations import read_messages
from headrace.api.pictures import NamedPicture
from headrace.api.protocol.chat_body import Message, template_messages
from headrace.api.text.chat import HOLDER
from headrace.contract.errors import InvalidRequest

TEXT = {"type": "text", "text": "What is this?"}
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    "messages",
    [
        user("plain"),
        user([TEXT, {"type": "input_text", "text": "two"}]),
        user([]),
        user([SHOWN, TEXT, SHOWN]),
        [*user("a"), {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": [SHOWN]}],
    ],
)
def test_it_is_the_reading_of_the_server(messages: list[dict[str, Any]]) -> None:
    own: list[NamedPicture] = []
    served: list[NamedPicture] = []
    assert read_messages(messages, own) == template_messages(msgspec.convert(messages, list[Message]), served)
    assert own == served


def test_pictures_may_be_bytes_or_arrays_here() -> None:
    pictures: list[NamedPicture] = []
    given = object()  # whoever looks at it is the one that decodes
    [message] = read_messages(user([{"type": "image", "image": given}, TEXT]), pictures)
    assert message["content"] == f"{HOLDER}\nWhat is this?"
    assert pictures == [NamedPicture("messages[0].content[0].image", given)]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("Hello", "messages"),
        ({"role": "user", "content": "Hello"}, "messages"),
        ([], "messages"),
        (["Hello"], "messages[0]"),
        ([{"content": "Hello"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        (user(5), "messages[0].content"),
        (user(["What is this?"]), "messages[0].content[0]"),
        (user([TEXT, {"type": "text", "txt": "a"}]), "messages[0].content[1].text"),
        (user([{"type": "text", "text": 5}]), "messages[0].content[0]"),
        (user([{"type": "picture", "image": b""}]), "messages[0].content[0]"),
        (user([{"type": "image_url", "image_url": {"url": "http://x"}}]), "messages[0].content[0].image_url"),
        ([{"role": "system", "content": [SHOWN]}], "messages[0].content[0]"),
        ([*user("a"), {"role": "assistant", "content": [SHOWN]}], "messages[1].content[0]"),
    ],
)
def test_what_is_no_message_is_refused_by_name(messages: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_messages(messages, [])
    assert caught.value.field == field


@pytest.mark.parametrize("part", [SHOWN, {"type": "image", "image": b""}])
def test_without_eyes_a_picture_is_refused_as_such(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"^messages\[0\]\.content\[0\]: .*no eyes"):
        read_messages(user([part]), None)
    with pytest.raises(InvalidRequest, match=r"^messages\[0\]\.content\[0\]: .*no eyes"):
        template_messages(msgspec.convert(user([SHOWN]), list[Message]))
