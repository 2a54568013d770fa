"""Keys, rates and usage of tenants, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from hmac import compare_digest
from pathlib import Path

import pytest

from headrace.api.tenants import registry as registry_file
from headrace.api.tenants.buckets import Bucket
from headrace.api.tenants.registry import Registry, Tenant, hash_key, new_key
from headrace.api.tenants.tenancy import OverLimit, Served, Tenancy, TenancyLimits
from headrace.api.tenants.usage import UsageBook
from headrace.api.tenants.visit import Visit
from headrace.contract.errors import ConfigError


def tenant(name: str = "a", key: str = "k", **fields: object) -> Tenant:
    return Tenant(name=name, key_sha256=hash_key(key), **fields)  # type: ignore[arg-type]


def one(fields: str) -> str:
    """A file with one tenant in it, as text."""
    return f'{{"tenants": [{{"key_sha256": "{hash_key("k")}", {fields}}}]}}'


def test_a_bucket_fills_steadily_and_may_be_in_debt() -> None:
    bucket = Bucket(60, 0.0)
    assert bucket.wait_s(60, 0.0) == 0
    bucket.take(90, 0.0)
    assert bucket.level(0.0) == -30
    assert bucket.wait_s(1, 0.0) == 31
    assert bucket.wait_s(1, 30.5) == 1
    assert bucket.wait_s(10**9, 91.0) == 0  # more than it holds asks for a full one
    assert bucket.level(10**6) == 60


def test_retry_after_is_when_it_works() -> None:
    now = [0.0]
    known = tenant(requests_per_min=2, tokens_per_min=100)
    tenancy = Tenancy(Registry([known]), UsageBook(None), clock=lambda: now[0])
    tenancy.admit_request(known)
    tenancy.admit_request(known)
    with pytest.raises(OverLimit, match="2 requests a minute") as refusal:
        tenancy.admit_request(known)
    now[0] += refusal.value.retry_after_s
    tenancy.admit_request(known)
    tenancy.admit_prompt(known, 80)
    tenancy.take_generated(known, 50)
    with pytest.raises(OverLimit, match="100 tokens a minute") as refusal:
        tenancy.admit_prompt(known, 10)
    now[0] += refusal.value.retry_after_s
    tenancy.admit_prompt(known, 10)


def test_a_part_that_waits_with_nothing_under_way_has_a_deadline_too() -> None:
    async def run() -> Exception:
        tenants = [tenant("a"), tenant("b", "other")]
        tenancy = Tenancy(Registry(tenants), UsageBook(None), TenancyLimits(slots=1, wait_s=0.01))
        ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        wide = Visit(tenancy, tenants[0], [10, 10])
        wide.on_end = ended.set_result
        await wide.turn()
        other = Visit(tenancy, tenants[1], [10])
        await asyncio.sleep(0.05)
        assert not ended.done()  # its first part is still under way
        wide.ended(0)
        await other.turn()
        try:
            return await asyncio.wait_for(ended, 30.0)
        finally:
            wide.end(0, 2)
            other.end(0, 1)
            assert (tenancy.queue.waiting("a"), tenancy.queue.running("b"), tenancy.waiting.total()) == (0, 0, 0)

    told = asyncio.run(run())
    assert isinstance(told, OverLimit)
    assert told.code == "queue_timeout"


def test_the_file_holds_hashes_and_finds_keys(tmp_path: Path) -> None:
    path, keys = tmp_path / "tenants.json", [new_key() for _ in range(3)]
    registry = Registry([])
    for i, key in enumerate(keys):
        registry = registry.with_new(tenant(f"t{i}", key))
    registry.save(path)
    text = path.read_text()
    assert not any(key in text for key in keys)
    assert path.stat().st_mode & 0o077 == 0
    loaded = Registry.load(path)
    found = [loaded.find(key) for key in keys]
    assert [one.name for one in found if one is not None] == ["t0", "t1", "t2"]
    assert loaded.find("") is None
    assert loaded.find(hash_key(keys[0])) is None
    assert loaded.find("\ud800") is None


@pytest.mark.parametrize("key", ["k0", "k2", "nobody's"])
def test_every_hash_is_compared_whichever_it_is(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each by the function that takes the same time wherever two differ."""
    registry, compared = Registry([tenant(f"t{i}", f"k{i}") for i in range(3)]), list[str]()

    def compare(given: str, known: str) -> bool:
        compared.append(known)
        return compare_digest(given, known)

    monkeypatch.setattr(registry_file.hmac, "compare_digest", compare)
    found = registry.find(key)
    assert (None if found is None else found.name) == {"k0": "t0", "k2": "t2"}.get(key)
    assert compared == [one.key_sha256 for one in registry.tenants]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "truncated"),
        ('{"tenants": [{"name": "a"}]}', "key_sha256"),
        (one('"name": ""'), "no name"),
        ('{"tenants": [{"name": "a", "key_sha256": "abc"}]}', "64 hexadecimal"),
        (one('"name": "a", "requests_per_min": 0'), "requests_per_min"),
        (one('"name": "a", "extra": 0'), "extra"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "tenants.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        Registry.load(path)


def test_two_of_a_name_or_a_key_are_refused() -> None:
    with pytest.raises(ConfigError, match="there already"):
        Registry([tenant()]).with_new(tenant(key="other"))
    with pytest.raises(ConfigError, match="same key"):
        Registry([tenant("a"), tenant("b")])


def test_usage_survives_a_restart_and_keeps_days_apart(tmp_path: Path) -> None:
    path, today = tmp_path / "usage.sqlite", ["2026-01-01"]
    book = UsageBook(path, lambda: today[0])
    book.add("a", requests=1, prompt_tokens=5)
    book.flush()
    book.add("a", generation_tokens=7)
    today[0] = "2026-01-02"
    book.add("a", requests=1)
    book.close()
    again = UsageBook(path, lambda: today[0])
    again.add("b", requests=1)
    assert again.totals()["a"] == {
        "since": "2026-01-01",
        "requests": 2,
        "prompt_tokens": 5,
        "cached_tokens": 0,
        "generation_tokens": 7,
    }
    assert again.totals()["b"]["requests"] == 1
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT day, requests FROM usage WHERE tenant = 'a' ORDER BY day").fetchall() == [
            ("2026-01-01", 1),
            ("2026-01-02", 1),
        ]


def test_the_database_is_its_owners_only(tmp_path: Path) -> None:
    book = UsageBook(tmp_path / "usage.sqlite")
    book.add("a", requests=1)
    book.flush()
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o077] == []
    book.close()


def test_a_server_of_no_tenants_is_refused() -> None:
    with pytest.raises(ConfigError, match="tenants add"):
        Tenancy(Registry([]), UsageBook(None))


def test_a_database_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="usage_db"):
        UsageBook(tmp_path / "no" / "usage.sqlite")


def test_the_database_is_its_owners_alone(tmp_path: Path) -> None:
    book = UsageBook(tmp_path / "usage.sqlite")
    book.add("a", requests=1)
    book.flush()
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    book.close()


def test_what_could_not_be_written_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    book = UsageBook(path)
    book.add("a", requests=1)
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE usage RENAME TO away")
    with pytest.raises(sqlite3.Error):
        book.flush()
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE away RENAME TO usage")
    assert book.totals()["a"]["requests"] == 1


@pytest.mark.parametrize("columns", ["tenant, day", "tenant, day, requests"])
def test_a_table_of_another_shape_is_refused_at_the_start(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "usage.sqlite"
    with sqlite3.connect(path) as db:
        db.execute(f"CREATE TABLE usage ({columns})")
    with pytest.raises(ConfigError, match=r"usage_db.*column"):
        UsageBook(path)


def test_opening_a_book_counts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    UsageBook(path).close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT * FROM usage").fetchall() == []


def broken(path: Path) -> UsageBook:
    """A book whose table somebody took away."""
    book = UsageBook(path)
    book.add("a", requests=1)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE usage")
    return book


def test_an_end_does_not_fail_over_a_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken(tmp_path / "usage.sqlite").close()
    assert "usage could not be written" in caplog.text


def test_all_who_read_at_once_wait_for_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, asked, go = UsageBook(tmp_path / "usage.sqlite"), [], threading.Event()
    totals = book.totals

    def slow() -> dict[str, dict[str, int]]:
        asked.append(1)
        assert go.wait(60)
        return totals()

    async def read_often() -> list[dict[str, dict[str, int]]]:
        readers = [asyncio.create_task(book.read()) for _ in range(50)]
        await asyncio.sleep(0)
        readers[0].cancel()  # a reader that goes takes no answer from the others
        await asyncio.to_thread(go.set)  # a thread is still to be had
        return await asyncio.gather(*readers[1:])

    monkeypatch.setattr(book, "totals", slow)
    book.add("a", requests=1)
    answers = asyncio.run(read_often())
    assert len(asked) == 1
    assert all(one["a"]["requests"] == 1 for one in answers)
    book.close()


def test_what_a_tenant_got_is_counted_and_how_long_it_waited() -> None:
    async def run() -> Tenancy:
        now = [100.0]
        tenants = [tenant("a"), tenant("b", "other")]
        tenancy = Tenancy(Registry(tenants), UsageBook(None), TenancyLimits(slots=1), clock=lambda: now[0])
        first, second = Visit(tenancy, tenants[0], [10]), Visit(tenancy, tenants[1], [7, 3])
        first.generated(0, 4)
        now[0] += 2.5
        first.end(0, 1)  # the other's first sequence has waited until now
        second.generated(0, 6)
        now[0] += 1.0
        second.end(0, 1)  # and its second one for nothing
        return tenancy

    served = asyncio.run(run()).served
    assert served["a"] == Served(turns=1, wait_s=0.0, prompt_tokens=10, generation_tokens=4)
    assert served["b"] == Served(turns=1, wait_s=2.5 + 3.5, prompt_tokens=7, generation_tokens=6)
