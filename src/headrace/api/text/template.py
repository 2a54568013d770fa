"""Messages to prompt text: runs a model's chat template, bounded in size and time.

The template is code from the checkpoint's author and the messages come from the user; neither is trusted.
What a template writes is text only: which of it may become control tokens is decided in ``chat.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from headrace.contract.errors import InvalidRequest, ModelError

from .budget import Budget, BudgetError, RenderLimits
from .sandbox import BUDGET, ChatEnvironment

NO_TEMPLATE = (
    "the model has no chat template: it is a base model; give a plain prompt instead (/v1/completions, `headrace run`)"
)
Message = Mapping[str, Any]


def render_chat(
    template: str | None,
    messages: Sequence[Message],
    *,
    bos: str,
    eos: str,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    limits: RenderLimits | None = None,
    now: Callable[[], datetime] = datetime.now,
) -> str:
    """The prompt text of a conversation.

    ``variables`` are further names the template may read (``enable_thinking`` and the like). Raises
    InvalidRequest("messages", ...) when there is no template, when the template refuses the messages or
    goes over the limits, and ModelError("chat_template", ...) when it cannot even be compiled.
    """
    if not template:
        raise InvalidRequest("messages", NO_TEMPLATE)
    context = dict(variables or {}) | {
        "messages": messages,
        "tools": tools,
        "documents": None,
        "bos_token": bos,
        "eos_token": eos,
        "add_generation_prompt": add_generation_prompt,
        "strftime_now": lambda layout: now().strftime(str(layout)[:100]),
        BUDGET: Budget(limits or RenderLimits()),
    }
    return _run(_compile(template), context)


@lru_cache(maxsize=16)
def _compile(template: str) -> Template:
    try:
        return ChatEnvironment().from_string(template)
    except TemplateSyntaxError as error:
        raise ModelError("chat_template", f"line {error.lineno}: {error.message}") from error
    except (TemplateError, RecursionError, SyntaxError, MemoryError) as error:
        raise ModelError("chat_template", f"cannot be compiled: {error}") from error


def _run(template: Template, context: dict[str, Any]) -> str:
    try:
        return "".join(template.generate(context))
    except BudgetError as error:
        raise InvalidRequest("messages", str(error)) from error
    except TemplateError as error:
        raise InvalidRequest("messages", f"the chat template refuses them: {error.message}") from error
    except Exception as error:  # whatever the template's own expressions trip over is the input's fault
        name = type(error).__name__
        raise InvalidRequest("messages", f"the chat template fails on them: {name}: {error}") from error
