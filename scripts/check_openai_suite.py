"""openai-python's own tests against a running server: how many pass, and why each of the others does not.

Not part of CI; nothing of it is kept here. In an environment of its own:

    pip install "openai[aiohttp]" pytest pytest-asyncio respx numpy rich
    pip download --no-deps --no-binary openai openai==3.57.0 && tar xzf openai-3.57.0.tar.gz
    headrace serve --max-model-len 256 --served-model-name gpt-6-astra --served-model-name gpt-3.5-turbo-instruct
    python scripts/check_openai_suite.py http://127.0.0.1:8000 openai-3.57.0

The names are those the tests ask for. Tests of routes that are not served (stored answers, deleting models) are left
out. Exits with 1 when something fails for another reason than the refusals below, which are looked at one by one, or
when fewer tests pass than did: a server that refuses all is no better than one that breaks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

FILES = ("test_completions.py", "chat/test_completions.py", "test_responses.py", "test_models.py")
SERVED = "(create or Models) and not delete"
LEAST_PASSED = 95
# What these tests ask for and is refused, with 400 and the field's name; each is the right answer.
KNOWN = {
    "input: is required": "the tests send none, and no stored prompt or conversation could stand for it",
    "logit_bias: expected `int`, got `str`": "its key is `foo`, which is no token",
    "access_programs: unknown field": "a field of accounts at OpenAI",
}
REFUSAL = re.compile(r"Error code: (?:400|404|422) - (.*)")


def run_suite(url: str, suite: Path, results: Path) -> None:
    """Writes JUnit's XML; the suite's own configuration is left aside, it wants plugins of its authors."""
    tests = [f"tests/api_resources/{name}" for name in FILES]
    options = ["-q", "-c", os.devnull, "--rootdir", ".", "-o", "asyncio_mode=auto", "-k", SERVED]
    command = [sys.executable, "-m", "pytest", *options, f"--junitxml={results}", *tests]
    subprocess.run(command, cwd=suite, env={**os.environ, "TEST_API_BASE_URL": f"{url}/v1"}, check=False)


def told(results: Path) -> tuple[int, Counter[str], list[str]]:
    """Passed; refusals by reason; everything else by test."""
    passed, refused, failed = 0, Counter[str](), list[str]()
    for case in ElementTree.parse(results).iter("testcase"):
        fault = case.find("failure")
        fault = case.find("error") if fault is None else fault
        if fault is None:
            passed += case.find("skipped") is None
        elif (reason := REFUSAL.search(fault.get("message", ""))) is not None:
            refused[reason[1]] += 1
        else:
            failed.append(f"{case.get('classname')}.{case.get('name')}: {fault.get('message', '')[:200]}")
    return passed, refused, failed


def main(url: str, suite: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        run_suite(url, suite.resolve(), results)
        passed, refused, failed = told(results)
    print(f"\n{passed} passed, {refused.total()} refused, {len(failed)} failed")
    for reason, count in refused.most_common():
        print(f"  refused {count} times: {reason}; {KNOWN.get(reason, 'NOT EXPECTED')}")
    for line in failed:
        print(f"  FAILED {line}")
    if passed < LEAST_PASSED:
        print(f"  FAILED: at least {LEAST_PASSED} are to pass")
    return 1 if failed or passed < LEAST_PASSED or set(refused) - set(KNOWN) else 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or not Path(sys.argv[2]).is_dir():
        sys.exit(f"usage: {Path(__file__).name} URL FOLDER; FOLDER holds openai-python's source, see this file's top")
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
