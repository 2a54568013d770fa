"""From a body to a job: prompts prepared, and the words to answer in. Slow parts; runs off the event loop."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import CHAT

from ..conversations import pictured
from ..pictures import NamedPicture, expanded_ids
from ..prompts import Prepared
from ..protocol.chat_body import ChatBody, Message, template_messages
from ..protocol.chat_reply import ChatReply
from ..protocol.messages_body import CountBody, MessagesBody
from ..protocol.messages_reply import MessagesReply
from ..protocol.news import Reply
from ..protocol.responses_body import ResponsesBody
from ..protocol.responses_reply import ResponsesReply
from ..protocol.text_body import TextBody
from ..protocol.text_reply import TextReply
from ..text.answer_forms import Mark
from ..text.tokenizer import Tokenizer
from .extent import check_wishes
from .host import EngineHost


@dataclass(frozen=True, slots=True)
class Job:
    """Checked to the last field; nothing is queued yet."""

    prepared: list[Prepared]
    reply: Reply
    streams: bool
    marks: Mapping[int, Mark] = field(default_factory=dict)


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(12)}"


@contextmanager
def blaming(field: str, *inner: str) -> Iterator[None]:
    """What is refused inside by one of the ``inner`` names has this one in the body."""
    try:
        yield
    except InvalidRequest as error:
        if error.field not in inner:
            raise
        raise InvalidRequest(field, str(error).removeprefix(f"{error.field}: ")) from error


def tokenizer_of(host: EngineHost, field: str) -> Tokenizer:
    if host.llm.tokenizer is None:
        raise InvalidRequest(field, "this model has no tokenizer: it reads and writes token ids only")
    return host.llm.tokenizer


def head(host: EngineHost, request_id: str) -> dict[str, Any]:
    """What every OpenAI answer begins with."""
    return {"id": request_id, "object": "", "created": int(time.time()), "model": host.names[0]}


def chat_prompt(host: EngineHost, messages: list[Message], **told: Any) -> dict[str, Any]:
    """A conversation as a prompt: ids, and its pictures if any. ``told``: further arguments of ``Codec.encode``.

    Raises InvalidRequest."""
    tokenizer, eyes = tokenizer_of(host, "messages"), host.llm.eyes
    pictures: list[NamedPicture] = []
    said = template_messages(messages, None if eyes is None else pictures)
    if eyes is None or not pictures:
        return {"prompt_token_ids": host.codec.encode(said, **told)}
    return pictured(eyes, host.codec.encode(said, picture=tokenizer.token_text(eyes.token_id), **told), pictures)


def counted_ids(host: EngineHost, prompt: Mapping[str, Any]) -> list[int]:
    """The ids of ``chat_prompt``, a picture's as many as it has rows."""
    ids: list[int] = prompt["prompt_token_ids"]
    return expanded_ids(host.llm.eyes, ids, prompt["images"]) if "images" in prompt else ids


def chat_job(host: EngineHost, body: ChatBody, request_id: str) -> Job:
    body.refuse_unserved()
    wish, sampling = body.tool_wish(), body.sampling()
    begins = body.add_generation_prompt is not False
    prompt = chat_prompt(
        host,
        body.messages,
        tools=wish.for_template(),
        variables=body.variables(),
        add_generation_prompt=begins,
        context=host.llm.max_model_len,
    )
    plan, sampling = host.codec.read(wish, prompt["prompt_token_ids"], sampling)
    prepared = host.llm.prepare(prompt | body.prompt_fields(), sampling, request_id)
    reply = ChatReply(
        head(host, request_id),
        tokenizer_of(host, "messages"),
        num_top=sampling.logprobs,
        wants_usage=body.wants_usage,
        show_ids=bool(body.return_token_ids),
        legacy=body.speaks_functions,
        plan=plan,
    )
    return Job([prepared], reply, body.streams, plan.mark_ids)


def messages_prompt(host: EngineHost, body: CountBody, context: int | None = None) -> dict[str, Any]:
    """``context``: as ``encode_chat``; without it a prompt of any length is counted."""
    tools = body.tool_wish().for_template()
    return chat_prompt(host, body.conversation(), tools=tools, variables=body.variables(), context=context)


def messages_ids(host: EngineHost, body: CountBody) -> list[int]:
    """All that the model would read."""
    return counted_ids(host, messages_prompt(host, body))


def messages_job(host: EngineHost, body: MessagesBody, request_id: str) -> Job:
    body.refuse_unserved()
    prompt = messages_prompt(host, body, host.llm.max_model_len)
    plan, sampling = host.codec.read(body.tool_wish(), prompt["prompt_token_ids"], body.sampling())
    prepared = host.llm.prepare(prompt | {"kv_class": body.kv_class or CHAT}, sampling, request_id)
    reply = MessagesReply(request_id, host.names[0], plan, shows_thoughts=body.shows_thoughts)
    return Job([prepared], reply, bool(body.stream), plan.mark_ids)


def responses_job(host: EngineHost, body: ResponsesBody, request_id: str) -> Job:
    body.refuse_unserved()
    wish = body.tool_wish()
    said = body.conversation()
    with blaming("input", "messages", "prompt"):
        prompt = chat_prompt(
            host, said, tools=wish.for_template(), variables=body.variables(), context=host.llm.max_model_len
        )
    plan, sampling = host.codec.read(wish, prompt["prompt_token_ids"], body.sampling())
    if not plan.plain:
        body.refuse_logprobs()
    prepared = host.llm.prepare(prompt | {"kv_class": body.kv_class or CHAT}, sampling, request_id)
    reply = ResponsesReply(request_id, host.names[0], body, tokenizer_of(host, "input"), plan)
    return Job([prepared], reply, bool(body.stream), plan.mark_ids)


def text_job(host: EngineHost, body: TextBody, request_id: str) -> Job:
    sampling, fields, prompts = body.sampling(), body.prompt_fields(), body.prompts()
    if body.logprobs is not None:
        tokenizer_of(host, "logprobs")
    count = len(prompts) * sampling.n  # a short body can ask for millions: nothing is made before they are bounded
    host.check_count(count)
    check_wishes(sampling, count)
    names = [request_id] if len(prompts) == 1 else [f"{request_id}-{i}" for i in range(len(prompts))]
    places = ["prompt"] if len(prompts) == 1 else [f"prompt[{i}]" for i in range(len(prompts))]
    prepared = []
    for one, name, place in zip(prompts, names, places):
        with blaming(place, "prompt", "prompt_token_ids"):
            prepared.append(host.llm.prepare(_prompt(one) | fields, sampling, name))
    reply = TextReply(
        head(host, request_id),
        host.llm.tokenizer,
        num_top=body.logprobs,
        prompt_top=body.prompt_logprobs,
        echo=bool(body.echo),
        scores_only=body.scores_only,
        wants_usage=body.wants_usage,
        show_ids=bool(body.return_token_ids),
    )
    return Job(prepared, reply, body.streams)


def _prompt(one: str | list[int]) -> dict[str, Any]:
    return {"prompt": one} if isinstance(one, str) else {"prompt_token_ids": one}
