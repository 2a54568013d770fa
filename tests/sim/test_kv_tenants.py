"""Whose stored values are: the tenant's, under whatever salts it asks. Quotas and purging go by its name."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import request
from kv_engines import ROOMY, engine_with_store, long_tiny, serve
from msgspec import structs

from headrace.api.http.tenant_prompts import salted
from headrace.api.prompts import Prepared
from headrace.api.tenants.registry import Tenant
from headrace.contract.request import Request
from headrace.kv import reclaim
from headrace.kv.keys import namespace_digest, tenant_tag
from headrace.kv.local import LocalStore
from headrace.models.context import Model

PROMPT = random.Random(3).choices(range(60), k=300)  # two grains and a little
SPACE = namespace_digest([("facts", "weights"), ("kv", "float32")])[:16]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return long_tiny("llama", tmp_path_factory.mktemp("long"))


def asked_by(name: str, salt: str, **fields: Any) -> Request:
    plain = structs.replace(request(PROMPT), cache_salt=salt)
    prepared = Prepared("r", None, PROMPT, plain.sampling, [plain])
    return salted(prepared, Tenant(name=name, key_sha256="0" * 64, **fields)).requests[0]


def ask(model: Model, folder: Path, *requests: Request, **settings: Any) -> list[int]:
    """Tokens found in the store by each, one after the other."""
    store = LocalStore(folder, ROOMY, name_space=SPACE, **settings)
    engine, connector = engine_with_store(model, folder, store=lambda: store)
    assert connector.wait_opened(60) is not None
    found = [serve(engine, one)[0].num_cached_tokens for one in requests]
    engine.close()
    return found


@contextmanager
def looking_into(folder: Path) -> Iterator[LocalStore]:
    store = LocalStore(folder, ROOMY)
    yield store
    store.close()


def test_a_tenant_is_purged_by_its_name(model: Model, tmp_path: Path) -> None:
    requests = [asked_by("acme", salt) for salt in ("", "one", "two")]
    assert ask(model, tmp_path, *requests, asked_by("other", ""), request(PROMPT)) == [0] * 5
    with looking_into(tmp_path) as store:
        assert reclaim.purge(store, tenant_tag("acme")) == 6
        assert len(list(store.names())) == 4
        assert reclaim.purge(store, tenant_tag("")) == 2  # whoever came without tenants and salts
    assert ask(model, tmp_path, requests[1], asked_by("other", "")) == [0, 256]


def test_other_salts_evade_no_quota(model: Model, tmp_path: Path) -> None:
    ask(model, tmp_path, asked_by("acme", ""))
    with looking_into(tmp_path) as store:
        quota = store.index.tenant_bytes(tenant_tag("acme"))
    assert quota > 0
    ask(model, tmp_path, asked_by("acme", "one"), asked_by("acme", "two"), tenant_quota_bytes=quota)
    with looking_into(tmp_path) as store:
        assert 0 < sum(entry.span for _, entry in store.index.all_entries()) <= quota


def test_who_shares_finds_what_others_who_share_stored(model: Model, tmp_path: Path) -> None:
    sharing = [asked_by(name, "", share_cache=True) for name in ("a", "b")]
    assert ask(model, tmp_path, sharing[0]) == [0]
    assert ask(model, tmp_path, sharing[1], asked_by("a", ""), request(PROMPT)) == [256, 0, 0]
