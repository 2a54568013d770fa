"""Tools for chat templates that do not know them: told in the system message, calls and results written as text.

The texts go through the template as message contents, so control spellings in them stay text like in any content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .answer_forms import HERMES

Message = Mapping[str, Any]
RESULTS = ("tool", "function")
INTRODUCTION = """You can use functions. Each line below describes one, with a JSON schema of its arguments:
<tools>
{tools}
</tools>
To call a function, answer with its name and arguments in this form, once for each call:
<tool_call>
{{"name": "the name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


def with_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> list[Message]:
    """``messages`` for a template that reads only role and content. Without tools in them they come back unchanged.

    Results and what the user says beside them are one message: some templates want the roles to alternate."""
    told = _joined(messages)
    if not tools:
        return told
    words = INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if told and told[0]["role"] == "system":
        return [{**told[0], "content": f"{told[0]['content']}\n\n{words}"}, *told[1:]]
    return [{"role": "system", "content": words}, *told]


def _joined(messages: Sequence[Message]) -> list[Message]:
    told, before = list[Message](), ""
    for message in messages:
        plain, role = _plain_message(message), message["role"]
        follows = bool(told) and told[-1]["role"] == plain["role"] == "user"
        if follows and not {before, role}.isdisjoint(RESULTS):
            told[-1] = {**told[-1], "content": f"{told[-1]['content']}\n{plain['content']}"}
        else:
            told.append(plain)
        before = role
    return told


def _plain_message(message: Message) -> Message:
    if message["role"] in RESULTS:
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [_call_text(call) for call in message["tool_calls"]]
    texts = [message["content"], *calls] if message["content"] else calls
    return {"role": message["role"], "content": "\n".join(texts)}


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    body = {"name": function.get("name"), HERMES.key: function.get("arguments")}
    return f"{HERMES.begin}{json.dumps(body, ensure_ascii=False)}{HERMES.end}"
