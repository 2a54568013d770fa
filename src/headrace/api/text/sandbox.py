"""The Jinja environment in which chat templates run.

It speaks the dialect that Hugging Face templates are written in, and it is bounded: a template that loops
for ever or builds a huge value fails with BudgetError instead of taking the server along. For that,
every loop and macro body starts with a tick, operators and methods that enlarge values are checked first,
and filters that have no use in chat templates are not there. One environment serves all threads; the budget
travels in the render context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jinja2 import TemplateError, filters, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .budget import Budget

BUDGET = " budget"
"""Key of the budget among the template's variables. No template can write a name with a space in it."""

# fmt: off
FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "groupby", "int", "items", "last", "length", "list", "lower", "max", "min", "reject", "rejectattr",
    "reverse", "safe", "select", "selectattr", "sort", "title", "trim", "unique", "upper",
)
STRING_METHODS = frozenset((
    "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit", "islower", "isspace",
    "isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
    "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title",
    "upper",
))
# fmt: on


class TemplateRaisedError(TemplateError):
    """The template itself refused its input, by ``raise_exception``."""


class GenerationTag(Extension):
    """``{% generation %}`` marks the parts to train on; for rendering its body is all there is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox with limits. Compile with ``from_string``; render with a ``Budget`` under ``BUDGET``."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_written,
            extensions=[loopcontrols, GenerationTag],
        )
        kept = {name: self.filters[name] for name in FILTERS}
        self.filters = kept | {
            "join": _join,
            "replace": _replace,
            "map": _map,
            "string": _string,
            "tojson": _tojson,
            "indent": _indent,
        }
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.globals["raise_exception"] = _raise_exception

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _with_ticks(super()._parse(source, name, filename))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Nothing: ``str.format`` is refused like other unlisted methods, since a width can ask for any
        size.
        """

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _budget(context).binary(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as the base
        budget = _budget(__context)
        budget.tick()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name == "replace" and len(args) >= 2:
            budget.replacing(owner, str(args[0]), str(args[1]))
        elif isinstance(owner, str) and name == "join" and args:
            args = (budget.joining(owner, args[0]), *args[1:])
        return super().call(__context, __obj, *args, **kwargs)

    @staticmethod
    def tick(context: Context) -> None:
        _budget(context).tick()

    @staticmethod
    def bounded_concat(context: Context, *parts: Any) -> str:
        return "".join(map(str, _budget(context).joining("", parts)))


def _budget(context: Context) -> Budget:
    budget: Budget = context.parent[BUDGET]
    return budget


def _with_ticks(tree: nodes.Template) -> nodes.Template:
    """The tree with a tick in each loop and macro body, ``~`` a checked call, and all text counted."""
    bodies = [node.body for node in tree.find_all(nodes.For)]
    bodies += [node.body for node in tree.find_all(nodes.Macro)]
    bodies += [node.body for node in tree.find_all(nodes.CallBlock)]
    for body in bodies:
        body.insert(0, nodes.ExprStmt(_environment_call("tick", [])))
    _check_children(tree)
    return tree.set_environment(tree.environment)  # type: ignore[arg-type, return-value]


def _environment_call(method: str, args: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), [nodes.ContextReference(), *args], [], None, None)


def _check_children(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, field, [_checked(item) for item in value])
        elif isinstance(value, nodes.Node):
            setattr(node, field, _checked(value))


def _checked(node: Any) -> Any:
    if isinstance(node, nodes.Node):
        _check_children(node)
    if isinstance(node, nodes.Concat):
        return _environment_call("bounded_concat", node.nodes)
    if isinstance(node, nodes.TemplateData):  # constants pass through _written, plain template text does not
        return nodes.Const(node.data)
    return node


def _raise_exception(message: str) -> None:
    raise TemplateRaisedError(str(message))


@pass_context
def _written(context: Context, value: Any) -> Any:
    """Passes every written value, also inside ``{% set %}`` blocks."""
    budget = _budget(context)
    budget.spend(budget.weigh(value))
    return value


@pass_context
def _join(context: Context, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    items = value if attribute is None else _map(context, value, attribute=attribute)
    return str(d).join(map(str, _budget(context).joining(str(d), items)))


@pass_context
def _replace(context: Context, text: Any, old: str, new: str, count: int = -1) -> str:
    _budget(context).replacing(str(text), str(old), str(new))
    return str(text).replace(str(old), str(new), count)


@pass_context
def _map(context: Context, value: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    budget = _budget(context)
    for item in filters.sync_do_map(context, value, *args, **kwargs):
        budget.spend(budget.weigh(item))
        yield item


@pass_context
def _string(context: Context, value: Any) -> str:
    _budget(context).weigh(value)
    return str(value)


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: neither HTML nor non-ASCII characters are escaped."""
    _budget(context).weigh(value)
    if indent is not None and indent > 16:
        raise TemplateRaisedError("tojson: indent over 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_context
def _indent(context: Context, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    prefix = width if isinstance(width, str) else " " * min(width, 1000)
    _budget(context).replacing(str(text), "\n", prefix + "\n")
    return filters.do_indent(str(text), prefix, first, blank)
