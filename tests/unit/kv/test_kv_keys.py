"""Names of stored KV: golden vectors, C++ and Python alike, in every process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _core
from headrace.kv.keys import GRAIN, Extras, grain_chain, grain_root, namespace_digest, tenant_tag

SPACE = bytes(range(32))
GOLDEN = {
    "root": "47791599a3ee606e853b0b2cb4fc4778532241663efa25fddf10542848c71bd7",
    "tenant": "52a9ffd49ccacf2caa05f5989d74a0e406b5d7bcbc4397f0d42bcdf31c915f39",
    "key0": "a412cb2f5488be1de2c01ad4d30040452dab4c8b121902f1bd62275f6e3bb7ae",
    "key1": "8d394d34ecfdeceb4e9ac93f49f6d1cb2844f70eae58d375b1038d8f34f800a0",
    "extras": "1d2848b36493ac3a596446d186e49cf1715dc46eebfd74e5b06bd3d272daa1a9",
}


def test_golden_vectors() -> None:
    root = grain_root(SPACE, "")
    chain = grain_chain(root, range(383))
    extras = Extras("lora", (("image", 130, 4),), "embeds")
    assert root.hex() == GOLDEN["root"]
    assert grain_root(SPACE, "tenant").hex() == GOLDEN["tenant"]
    assert [key.hex() for key in chain] == [GOLDEN["key0"], GOLDEN["key1"]]
    assert grain_chain(root, range(256), extras)[1].hex() == GOLDEN["extras"]


names = st.text(max_size=8).filter(lambda s: "\0" not in s)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=400),
    names,
    names,
    st.lists(st.tuples(names, st.integers(0, 400), st.integers(1, 300)), max_size=2),
    names,
)
def test_cpp_and_python_make_the_same_bytes(
    tokens: list[int], salt: str, adapter: str, media: list[tuple[str, int, int]], embeds: str
) -> None:
    root = grain_root(SPACE, salt)
    assert _core.grain_root(SPACE, salt) == root
    keys = _core.ExtraKeys(adapter=adapter, media=media, salt=salt, embeds_digest=embeds)
    ours = grain_chain(root, tokens, Extras(adapter, tuple(media), embeds))
    assert _core.grain_chain(root, np.array(tokens, np.int32), keys) == ours
    assert len(ours) == len(tokens) // GRAIN
    assert GRAIN == _core.GRAIN


@pytest.mark.parametrize(
    "other",
    [
        grain_chain(grain_root(SPACE, "b"), range(256)),
        grain_chain(grain_root(SPACE, "a"), range(256), Extras(adapter="a")),
        grain_chain(grain_root(SPACE, "a"), range(256), Extras(embeds_digest="a")),
        grain_chain(grain_root(SPACE, "a"), range(256), Extras(media=(("a", 0, 1),))),
        grain_chain(grain_root(namespace_digest([("dtype", "x")]), "a"), range(256)),
        grain_chain(grain_root(SPACE, "a"), [1, *range(1, 256)]),
    ],
    ids=["tenant", "adapter", "embeds", "media", "namespace", "first token"],
)
def test_whatever_differs_makes_every_key_differ(other: list[bytes]) -> None:
    assert not set(grain_chain(grain_root(SPACE, "a"), range(256))) & set(other)


def test_facts_cannot_run_into_one_another() -> None:
    assert namespace_digest([("a", "bc")]) != namespace_digest([("ab", "c")])
    assert namespace_digest([("a", "b"), ("c", "d")]) != namespace_digest([("a", "b")])
    assert tenant_tag("a") != tenant_tag("b")
    assert len(tenant_tag("")) == 16


def test_processes_with_different_hash_seeds_agree() -> None:
    code = (
        "import numpy as np; from headrace import _core; from headrace.kv.keys import *\n"
        "r = grain_root(bytes(range(32)), 'tenant'); k = _core.grain_chain(r, np.arange(300, dtype=np.int32))\n"
        "print([x.hex() for x in k], [x.hex() for x in grain_chain(r, range(300))])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", f"import os; assert os.environ['PYTHONHASHSEED'] == '{seed}'\n{code}"],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""


def test_crc32c_is_castagnoli_s() -> None:
    digits = np.frombuffer(b"123456789", np.uint8)
    assert _core.crc32c(digits) == 0xE3069283
    assert _core.crc32c(digits[4:], _core.crc32c(digits[:4])) == 0xE3069283
