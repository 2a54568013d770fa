"""A headless Chromium that a test drives as a reader would: it types, presses and clicks, and reads what is shown.

Speaks the DevTools protocol over two pipes: no port, no package. Waits for what must come, and never for a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from served import DEADLINE_S, until

ANSWER_S = 4 * DEADLINE_S  # it may have to start first, on a machine that does much else
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--remote-debugging-pipe",
]
# The browser reads from descriptor 3 and writes to 4, whatever numbers our ends of the pipes have.
ON_3_AND_4 = """
import fcntl, os, sys
ends = [int(number) for number in sys.argv[1:3]]
high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
for end in ends:
    os.close(end)
for number, end in zip((3, 4), high):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
WHERE = """(() => {
  document.getElementById(ID).scrollIntoView({ block: "nearest" }); // as a reader would
  const box = document.getElementById(ID).getBoundingClientRect();
  const at = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
  return { ...at, seen: document.elementFromPoint(at.x, at.y)?.id === ID };
})()"""


def find_browser() -> str | None:
    """The program, by the first of its names that is there."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """Started with a profile of its own; ``open`` gives pages. A context manager: at its end the program is gone."""

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        start = [sys.executable, "-c", ON_3_AND_4, str(theirs_in), str(theirs_out)]
        self._process = subprocess.Popen(
            [*start, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._num_calls = 0
        self._read = b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DEADLINE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # and whatever it started
        self._process.wait(DEADLINE_S)
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """One command and its result; what is told meanwhile goes to ``events``. A refusal is an AssertionError."""
        self._num_calls += 1
        message = {"id": self._num_calls, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (told := self._next()).get("id") != self._num_calls:
            self.events.append(told)
        assert "error" not in told, f"{method}: {told['error']}"
        result: dict[str, Any] = told["result"]
        return result

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_S
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._from, 1 << 16) if ready else b""
            assert piece, "the browser does not answer" if not ready else "the browser has ended"
            self._read += piece
        raw, _, self._read = self._read.partition(b"\0")
        told: dict[str, Any] = json.loads(raw)
        return told

    def open(self, url: str) -> Page:
        """A new page; returns once its document and scripts have run."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Runtime", "Log", "Page"):
            page.call(f"{domain}.enable")
        page.call("Page.navigate", url=url)
        page.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'", "it does not load")
        return page


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is now, as JSON has it."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, (expression, told)
        return told["result"].get("value")

    def until(self, expression: str, words: str) -> None:
        until(lambda: self.value(f"Boolean({expression})") is True, f"{words}: {expression}")

    def texts(self, selector: str) -> list[str]:
        """The text of every element that matches, in order."""
        found: list[str] = self.value(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")
        return found

    def click(self, name: str) -> None:
        """With the mouse, in the middle of the element with this id, which must be visible there."""
        at = self.value(WHERE.replace("ID", json.dumps(name)))
        assert at.pop("seen"), f"{name} cannot be seen"
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def type(self, name: str, text: str) -> None:
        """Into the field with this id, in place of what is in it."""
        self.click(name)
        self.value(f"document.activeElement.id === {json.dumps(name)} && document.activeElement.select()")
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, to whatever has the focus. ``code``: Windows' number of it."""
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **fields, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    @property
    def faults(self) -> list[str]:
        """Exceptions that nobody caught, and what the page's own policy forbade."""
        self.value("0")  # so that what was told before now has been read
        mine = [told for told in self._browser.events if told.get("sessionId") == self._session]
        thrown = [str(told["params"]) for told in mine if told["method"] == "Runtime.exceptionThrown"]
        entries = [told["params"]["entry"] for told in mine if told["method"] == "Log.entryAdded"]
        return thrown + [entry["text"] for entry in entries if entry["source"] in ("security", "violation")]

    def close(self) -> None:
        self.call("Page.close")
