"""The page at ``/`` in a browser: a conversation, its ends and errors, the load, and an admin's view of the tenants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page, find_browser
from served import LONG, Running, Script, Turnstile, held, running, scripted_llm, text_tokenizer

from headrace.api.http.page_routes import FOLDER
from headrace.api.tenants.registry import Registry, Tenant, hash_key
from headrace.api.tenants.tenancy import Tenancy
from headrace.api.tenants.usage import UsageBook

MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
LAST = "[...document.querySelectorAll('#log .assistant')].at(-1)?.textContent"


SCROLLS = """["load", "tenants", "form"].map((id) => document.getElementById(id)).concat(document.documentElement)
    .filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.id || "page")"""  # to the side: what is wider


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("needs Chromium")
    with Browser(program, tmp_path_factory.mktemp("profile")) as made:
        yield made


@contextmanager
def opened(browser: Browser, server: Running) -> Iterator[Page]:
    """The page, once it has heard from the server; at the end nothing may have gone wrong in it."""
    page = browser.open(f"{server.url}/")
    page.until("document.getElementById('model').textContent === 'tiny · ready'", "the server is not heard of")
    yield page
    assert page.faults == []
    page.close()


def say(page: Page, text: str) -> None:
    page.type("said", text)
    page.press("Enter", 13, "\r")


def until_status(page: Page, words: str) -> None:
    page.until(f"document.getElementById('status').textContent.includes('{words}')", "the answer does not end")


def prompt_of(server: Running, script: Script) -> str:
    """What the engine was asked last."""
    return script.tokenizer.decode(server.requests[-1].prompt_token_ids, skip_special=False)


def test_the_page_is_complete_in_itself(scripted: Running) -> None:
    page = scripted.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    parts = re.findall(r'(?:src|href)="(/page/[^"]+)"', page.text)
    assert sorted(parts) == ["/page/load.js", "/page/page.css", "/page/page.js"]
    ids = set(re.findall(r'id="([^"]+)"', page.text))
    for part in parts:
        found = scripted.http.get(part)
        assert found.status_code == 200
        assert "http" not in found.text.replace("http-equiv", ""), "nothing comes from elsewhere"
        assert set(re.findall(r'find\("([^"]+)"\)', found.text)) <= ids
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", found.text)
    assert scripted.http.get("/page/../app.py").status_code == 404
    assert scripted.http.get("/page/index.html").status_code == 404


def test_the_load_is_told_in_numbers(script: Script) -> None:
    with running(lambda: scripted_llm(script)) as server:
        server.complete("x", max_tokens=5)
        server.settled()
        load = server.http.get("/load").json()
    asked = set(re.findall(r"load\.(\w+)", (FOLDER / "load.js").read_text()))
    assert asked
    assert asked <= set(load), "the page asks for numbers that nobody tells"
    assert (load["generation_tokens"], load["open"], load["ready"]) == (5, 0, True)
    steps = load["last_steps"]
    assert [step["step"] for step in steps] == list(range(steps[0]["step"], steps[-1]["step"] + 1))
    assert {step["kind"] for step in steps} <= {"prefill", "mixed", "decode"}
    assert sum(step["sequences"] for step in steps) >= 5


def test_the_load_is_shown(browser: Browser, script: Script) -> None:
    with running(lambda: scripted_llm(script)) as server:
        server.complete("x", max_tokens=5)
        server.settled()
        with opened(browser, server) as page:
            page.until("document.getElementById('tokens').textContent === '5'", "no load is shown")
            assert page.texts("#steps td:nth-child(2)").count("decode") >= 4  # the last steps, newest first
            assert page.value("document.getElementById('key-row').hidden && document.getElementById('tenants').hidden")


def test_an_answer_is_shown_as_it_comes_and_as_text(browser: Browser, script: Script) -> None:
    turnstile = Turnstile(5)
    slow = replace(script, answers={b"second": b"yes", b"first": MARKUP.encode()}, hold=turnstile)
    with running(lambda: scripted_llm(slow)) as server, opened(browser, server) as page:
        say(page, "first <i>question</i>")
        page.until(f"{LAST} === '<img'", "what has come is not shown while the rest is waited for")
        assert page.value("document.getElementById('log').getAttribute('aria-busy')") == "true"
        assert page.value("document.getElementById('send').disabled && !document.getElementById('stop').disabled")
        turnstile.admit(LONG)
        until_status(page, " generated; first after")
        assert page.texts("#log p") == ["first <i>question</i>", MARKUP]
        assert page.value("document.querySelectorAll('#log :not(p)').length") == 0  # words, not markup
        assert page.value("document.getElementById('log').getAttribute('aria-busy')") == "false"
        say(page, "second")
        page.until(f"{LAST} === 'yes'", "there is no second answer")
        asked = ["<|user|>first <i>question</i>", f"<|answer|>{MARKUP}", "<|user|>second", "<|answer|>"]
        assert prompt_of(server, script) == "<|end|>".join(asked)


def test_an_answer_is_stopped_and_a_conversation_begun_anew(browser: Browser, script: Script) -> None:
    with running(lambda: scripted_llm(held(script))) as server, opened(browser, server) as page:
        page.type("max-tokens", "15000")
        say(page, "stop me")
        page.until(f"{LAST}?.length > 3", "no answer comes")
        page.click("stop")
        until_status(page, "Stopped.")
        server.settled()  # the engine has heard of it
        kept = page.texts("#log .assistant")[0]
        assert kept.startswith("lore")
        say(page, "another")
        page.until(
            f"{LAST}?.startsWith('lore') && document.querySelectorAll('#log .assistant').length === 2", "none comes"
        )
        assert prompt_of(server, script).startswith(f"<|user|>stop me<|end|><|answer|>{kept}<|end|><|user|>another")
        page.click("clear")
        server.settled()
        page.until("!document.getElementById('send').disabled", "it still waits")
        assert page.texts("#log p") == ["Nothing has been said yet."]
        say(page, "afresh")
        page.until(f"{LAST}?.length > 3", "no answer comes")
        assert prompt_of(server, script) == "<|user|>afresh<|end|><|answer|>"
        page.click("stop")
        server.settled()


def test_thoughts_are_shown_apart_and_not_asked_again(browser: Browser, script: Script, tmp_path: Path) -> None:
    ending = "{% if add_generation_prompt %}<|answer|>{% endif %}{# </think> #}"
    turns = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    said = {b"second": b"done", b"first": b"<think>\n<b>hm</b>\n</think>\n\nyes"}
    thinker = Script(text_tokenizer(tmp_path, chat_template=turns + ending), said)
    with running(lambda: scripted_llm(thinker)) as server, opened(browser, server) as page:
        say(page, "first")
        until_status(page, " generated; first after")
        assert [text.strip() for text in page.texts("#log p")] == ["first", "<b>hm</b>", "yes"]
        assert page.texts("#log .thought") == [page.texts("#log p")[1]]
        say(page, "second")
        page.until(f"{LAST} === 'done'", "there is no second answer")
        assert "hm" not in prompt_of(server, script)
        assert "yes" in prompt_of(server, script)


def test_a_base_model_continues_what_it_is_given(browser: Browser, tmp_path: Path) -> None:
    base = Script(text_tokenizer(tmp_path, chat_template=None), {b"once": b" upon a time"})
    with running(lambda: scripted_llm(base)) as server, opened(browser, server) as page:
        assert not page.value("document.getElementById('base-note').hidden")
        refused = server.post("/v1/responses", {"input": "x"}).json()["error"]
        assert (refused["param"], "/v1/completions" in refused["message"]) == ("input", True)
        say(page, "once")
        page.until(f"{LAST} === ' upon a time'", "there is no answer")
        say(page, "once more")
        page.until("document.querySelectorAll('#log .assistant').length === 2", "there is no second answer")
        until_status(page, " generated; first after")
        assert prompt_of(server, base) == "once more"


def test_on_a_desk_all_of_the_load_is_seen(browser: Browser, script: Script) -> None:
    with running(lambda: scripted_llm(script)) as server:
        server.complete("x", max_tokens=20)
        server.settled()
        with opened(browser, server) as page:
            page.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
            page.until("document.getElementById('steps').rows.length > 1", "no steps are shown")
            assert page.value("load.scrollHeight <= load.clientHeight")
            assert page.value(SCROLLS) == []


def test_errors_are_told_before_and_within_an_answer(browser: Browser, script: Script) -> None:
    llm = partial(scripted_llm, script, fail_steps={5}, max_model_len=100)
    with running(llm) as server, opened(browser, server) as page:
        say(page, "x" * 200)
        page.until("document.querySelector('#log .error')", "a refusal is not shown")
        assert page.texts("#log .assistant") == []
        assert "100" in page.texts("#log .error")[0]  # the context's length
        assert page.value("document.getElementById('said').value") == "x" * 200  # to be mended and sent again
        say(page, "short")
        page.until("document.querySelectorAll('#log .error').length === 2", "a failure is not shown")
        assert "scripted failure" in page.texts("#log .error")[1]
        assert page.texts("#log .assistant")[0].startswith("lore")
        assert prompt_of(server, script) == "<|user|>short<|end|><|answer|>"  # without what was refused
        assert not page.value("document.getElementById('send').disabled")


def tenancy() -> Tenancy:
    def tenant(name: str, **fields: Any) -> Tenant:
        return Tenant(name=name, key_sha256=hash_key(f"key-{name}"), **fields)

    return Tenancy(Registry([tenant("root", admin=True), tenant("acme", requests_per_min=60)]), UsageBook(None))


def test_an_admin_sees_the_tenants_and_nobody_else_does(browser: Browser, script: Script) -> None:
    with running(lambda: scripted_llm(script), tenancy=tenancy()) as server, opened(browser, server) as page:
        say(page, "no key")
        page.until("document.querySelector('#log .error')", "a refusal is not shown")
        assert "“API key”" in page.texts("#log .error")[0]  # what to do here, not which header
        assert page.value("document.activeElement.id === 'key' && document.getElementById('models-link').hidden")
        page.type("key", "key-acme")
        page.type("max-tokens", "6")
        say(page, "hello")
        until_status(page, "6 generated")
        server.settled()
        page.until("performance.getEntriesByName(location.origin + '/admin/tenants').length >= 1", "it did not ask")
        assert page.value("document.getElementById('tenants').hidden")
        page.type("key", "key-root")
        page.click("said")  # a key counts once its field is left
        page.until("!document.getElementById('tenants').hidden", "the tenants are not shown")
        assert page.texts("#tenant-rows th") == ["root", "acme"]
        prompt = str(len(server.requests[-1].prompt_token_ids))
        labels = page.value(
            "[...document.querySelectorAll('#tenant-rows tr:first-child td')].map(c => c.dataset.label)"
        )
        assert labels == page.texts("#tenants thead th")[1:]
        assert page.value(SCROLLS) == []
        page.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
        assert page.value(SCROLLS) == []
        page.call("Emulation.clearDeviceMetricsOverride")
        acme = page.texts("#tenant-rows tr:nth-child(2) td")
        assert acme == ["0", "0", prompt, "0", "6", "1", "59 of 60", "no limit"]
        page.type("key", "nobody's")
        page.click("said")
        page.until("document.getElementById('tenants').hidden", "they are still shown")
