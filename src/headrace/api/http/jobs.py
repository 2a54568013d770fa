"""From a body to a job: prompts prepared, and the words to answer in. Slow parts; runs off the event loop."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

from headrace.contract.errors import InvalidRequest

from ..prompts import Prepared
from ..protocol.chat_body import ChatBody, template_messages
from ..protocol.chat_reply import ChatReply
from ..protocol.news import Reply
from ..protocol.text_body import TextBody
from ..protocol.text_reply import TextReply
from ..text.chat import encode_chat
from ..text.tokenizer import Tokenizer
from .host import EngineHost


@dataclass(frozen=True, slots=True)
class Job:
    """Checked to the last field; nothing is queued yet."""

    prepared: list[Prepared]
    reply: Reply
    streams: bool


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"


def tokenizer_of(host: EngineHost, field: str) -> Tokenizer:
    if host.llm.tokenizer is None:
        raise InvalidRequest(field, "this model has no tokenizer: it reads and writes token ids only")
    return host.llm.tokenizer


def head(host: EngineHost, request_id: str) -> dict[str, Any]:
    """What every OpenAI answer begins with."""
    return {"id": request_id, "object": "", "created": int(time.time()), "model": host.names[0]}


def chat_ids(host: EngineHost, body: ChatBody) -> list[int]:
    """Prompt ids of a conversation. Raises InvalidRequest."""
    tokenizer = tokenizer_of(host, "messages")
    return encode_chat(
        tokenizer,
        template_messages(body.messages),
        tools=body.tools or None,
        variables=body.variables(),
        add_generation_prompt=body.add_generation_prompt is not False,
    )


def chat_job(host: EngineHost, body: ChatBody, request_id: str) -> Job:
    body.refuse_unserved()
    sampling = body.sampling()
    prompt = {"prompt_token_ids": chat_ids(host, body), **body.prompt_fields()}
    prepared = host.llm.prepare(prompt, sampling, request_id)
    reply = ChatReply(
        head(host, request_id),
        tokenizer_of(host, "messages"),
        num_top=sampling.logprobs,
        wants_usage=body.wants_usage,
        show_ids=bool(body.return_token_ids),
    )
    return Job([prepared], reply, body.streams)


def text_job(host: EngineHost, body: TextBody, request_id: str) -> Job:
    sampling, fields, prompts = body.sampling(), body.prompt_fields(), body.prompts()
    if body.logprobs is not None:
        tokenizer_of(host, "logprobs")
    names = [request_id] if len(prompts) == 1 else [f"{request_id}-{i}" for i in range(len(prompts))]
    prepared = [host.llm.prepare(_prompt(one) | fields, sampling, name) for one, name in zip(prompts, names)]
    reply = TextReply(
        head(host, request_id),
        host.llm.tokenizer,
        num_top=body.logprobs,
        echo=bool(body.echo),
        scores_only=body.scores_only,
        wants_usage=body.wants_usage,
        show_ids=bool(body.return_token_ids),
    )
    return Job(prepared, reply, body.streams)


def _prompt(one: str | list[int]) -> dict[str, Any]:
    return {"prompt": one} if isinstance(one, str) else {"prompt_token_ids": one}
