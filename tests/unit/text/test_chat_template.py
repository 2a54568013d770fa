from __future__ import annotations

import contextlib
import tracemalloc
from datetime import datetime
from typing import Any

import pytest

from headrace.api.text.budget import RenderLimits
from headrace.api.text.template import render_chat
from headrace.contract.errors import InvalidRequest, ModelError

HELLO = [{"role": "user", "content": "hello"}]


def render(template: str | None, messages: list[Any] = HELLO, **options: Any) -> str:
    return render_chat(template, messages, bos="<s>", eos="</s>", **options)


def test_a_usual_template() -> None:
    template = """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% continue %}{% endif %}
    {{- '[' + message.role ~ '] ' + message['content'] | trim + eos_token }}
{% endfor %}
{% if add_generation_prompt %}
    [assistant]
{%- endif %}"""
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": " a < b "}]
    assert render(template, messages) == "<s>[user] a < b</s>\n    [assistant]"
    assert render(template, messages, add_generation_prompt=False) == "<s>[user] a < b</s>\n"


def test_json_is_not_escaped_for_html() -> None:
    tools = [{"name": "füge", "doc": "a<b & 'c'"}]
    assert render("{{ tools | tojson }}", tools=tools) == '[{"name": "füge", "doc": "a<b & \'c\'"}]'
    assert render("{{ tools[0] | tojson(indent=1) }}", tools=tools).startswith('{\n "name"')


def test_tools_are_none_when_there_are_none() -> None:
    assert render("{{ tools is none }}") == "True"


def test_variables_dates_and_training_marks() -> None:
    day = datetime(2031, 5, 17)
    assert render("{{ strftime_now('%d %b %Y') }}", now=lambda: day) == "17 May 2031"
    assert render("{{ think }}", variables={"think": False}) == "False"
    assert render("a{% generation %}b{% endgeneration %}c") == "abc"


def test_a_base_model_has_no_template() -> None:
    with pytest.raises(InvalidRequest, match=r"base model.*completion") as caught:
        render(None)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[0].missing.deeper }}", "missing"),
        ("{% include 'other' %}", "no loader"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception.__globals__.x }}", "unsafe"),
        ("{{ '%s' % 'x' }}", "formats"),
    ],
)
def test_failures_name_the_messages(template: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        render(template)
    assert caught.value.field == "messages"


@pytest.mark.parametrize("template", ["{% for %}", "{{ x | no_such_filter }}", "{" * 9, "{{" + "(" * 5000])
def test_a_broken_template_is_the_models_fault(template: str) -> None:
    with pytest.raises(ModelError, match="chat_template"):
        render(template + "{% endif %}")


HUGE = [
    "{{ 'a' * 10**9 }}",
    "{{ [1] * 10**9 }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x|replace('a',n.x) %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x.replace('a',n.x) %}{% endfor %}",
    "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{{ 9 ** 99999999 }}",
    "{{ ('a' * 9999).join(range(9999)) }}",
    "{{ range(9999) | join('a' * 9999) }}",
    "{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}" + "a" * 999 + "{% endfor %}{% endset %}",
    "{% set l = ['a' * 9999] * 9999 %}{{ l | tojson }}",
    "{% set l = ['a' * 9999] * 9999 %}{{ l | string | length }}",
    "{% set l = ['a' * 9999] * 9999 %}{{ l }}",
    "{% set l = ['a' * 9999] * 9999 %}{{ l | map('upper') | list | length }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ '{:>999999999}'.format('a') }}",
    "{{ lipsum(10**9) }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ 'a\nb' | indent(10**12) }}",
]


@pytest.mark.parametrize("template", HUGE)
def test_nothing_huge_is_built(template: str) -> None:
    limits = RenderLimits(max_chars=1_000_000, max_seconds=30)
    tracemalloc.start()
    with contextlib.suppress(InvalidRequest, ModelError):
        assert len(render(template, limits=limits)) < 10_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set l=range(99999)|list %}{% for i in l %}{% for j in l %}{% set x=j %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    ],
)
def test_endless_work_is_cut_off(template: str) -> None:
    with pytest.raises(InvalidRequest, match=r"longer than 0\.05 s"):
        render(template, limits=RenderLimits(max_seconds=0.05))


def test_endless_recursion_is_cut_off() -> None:
    with pytest.raises(InvalidRequest, match="RecursionError"):
        render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


def test_a_limited_rendering_leaves_the_next_one_alone() -> None:
    template = "{{ messages[0].content * 1000 }}"
    with pytest.raises(InvalidRequest):
        render(template, limits=RenderLimits(max_chars=10))
    assert len(render(template)) == 5000
