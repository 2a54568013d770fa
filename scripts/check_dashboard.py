"""The dashboard's queries against a real Prometheus that scrapes a server of ours: each must parse and find something.

Not part of CI. Debian's package ``prometheus`` holds both programs: ``apt-get download prometheus`` and
``dpkg-deb -x prometheus_*.deb P``, then ``python scripts/check_dashboard.py --programs P/usr/bin -- --threads 2``.
Starts ``headrace serve`` with what follows ``--`` and a tenant's file, sends it requests, lets ``promtool`` judge
/metrics, and asks Prometheus for every panel. Exits with 1 when promtool objects, a query is none, or one finds nothing
that a server of this kind should have.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from headrace.api.tenants.registry import Registry, Tenant, hash_key, new_key
from local_server import local_server

DASHBOARD = Path(__file__).parents[1] / "deploy" / "grafana" / "headrace.json"
CONFIG = "scrape_configs:\n- job_name: headrace\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['{target}']\n"
RANGE = {"$__rate_interval": "30s", "$__interval": "15s", "$__range": "1m"}
START_S, SCRAPE_S = 30.0, 8.0
# Panels of what a plain server may lack: a store, and another engine's memory beside it.
OTHERS = ("KV store, events a second", "Windows found with their blocks")


def ask(url: str, body: dict[str, Any] | None = None, key: str | None = None) -> bytes:
    headers = {"content-type": "application/json"} | ({} if key is None else {"x-api-key": key})
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, headers), timeout=60) as response:
        found: bytes = response.read()
        return found


def queries() -> list[tuple[str, str]]:
    """(panel, expression) with Grafana's variables filled in."""
    out = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in RANGE.items():
                expression = expression.replace(name, value)
            out.append((panel["title"], expression))
    return out


@contextmanager
def prometheus(program: Path, target: str, folder: Path) -> Iterator[str]:
    """One that scrapes ``target`` every second; its address."""
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(program), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    process = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
        while not ready(url):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("Prometheus does not start")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def ready(url: str) -> bool:
    try:
        return bool(ask(f"{url}/-/ready"))
    except (URLError, OSError):
        return False


def found(url: str, expression: str) -> int:
    """Series that a query finds now. Raises SystemExit with Prometheus's words for one that is none."""
    try:
        answer = json.loads(ask(f"{url}/api/v1/query?query={quote(expression)}"))
    except URLError as error:
        raise SystemExit(f"{expression}: {error}") from error
    return len(answer["data"]["result"])


def judge(tool: Path, page: bytes) -> bool:
    """promtool's verdict on the page. It prefers base units and names; what it only advises is shown, not counted."""
    done = subprocess.run([str(tool), "check", "metrics"], input=page, capture_output=True, check=False)
    sys.stderr.write(done.stderr.decode())
    return done.returncode in (0, 3)  # 3: advice


def run(given: argparse.Namespace, folder: Path) -> bool:
    key, tenants = new_key(), folder / "tenants.json"
    Registry([Tenant(name="acme", key_sha256=hash_key(key))]).save(tenants)
    options = ["--tenants", str(tenants), "--peak-gflops", "100", *given.server]
    programs: Path = given.programs
    with (
        local_server(options) as server,
        prometheus(programs / "prometheus", server.url[len("http://") :], folder) as url,
    ):
        end = time.monotonic() + SCRAPE_S
        while time.monotonic() < end:
            ask(f"{server.url}/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8}, key)
        time.sleep(2)
        page = ask(f"{server.url}/metrics")
        counts = [(title, expression, found(url, expression)) for title, expression in queries()]
    empty = [(title, expression) for title, expression, count in counts if not count]
    missed = [one for one in empty if one[0] not in OTHERS]
    for title, expression in empty:
        print(f"{'NOTHING' if (title, expression) in missed else 'nothing here'}: {title}: {expression}")
    print(f"{len(counts)} queries, {len(counts) - len(empty)} with data")
    return judge(programs / "promtool", page) and not missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=Path, required=True, help="folder of prometheus and promtool")
    parser.add_argument("server", nargs="*", help="options of headrace serve, after --")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return 0 if run(given, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
