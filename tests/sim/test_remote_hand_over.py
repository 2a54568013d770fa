"""The two ends of a hand-off between processes, here on threads of one: pieces, bounds, damage, silence, new takers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from role_engines import DEADLINE_S, IdCodec, MovingWorker, done, engine_with, item, until

from headrace.contract.handoff import Part
from headrace.contract.request import Request, SamplingParams
from headrace.engine.remote_giver import MOST_BARE, RemoteGiver
from headrace.engine.remote_taker import RemoteTaker
from headrace.worker.fake import rolling_token
from headrace.worker.kv_frames import TensorCodec


class Ends:
    """A giver and a taker with a codec."""

    def __init__(self, folder: Path, codec: Any, *, silence_s: float = DEADLINE_S, **limits: Any) -> None:
        self.address, self.codec = f"ipc://{folder / 'ends'}", codec
        self.taker = RemoteTaker(self.address, codec, **limits)
        self.giver = RemoteGiver(self.address, codec, silence_s=silence_s)
        until(lambda: self.giver.has_room_for("any"))

    def close(self) -> None:
        self.giver.leave()
        self.taker.close()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    both = Ends(tmp_path, IdCodec(), capacity=2)
    yield both
    both.close()


def test_pieces_and_the_rest_come_together_in_order(tmp_path: Path) -> None:
    both = Ends(tmp_path, TensorCodec())
    kv = [torch.randn(12, 2, 3).bfloat16(), torch.arange(24, dtype=torch.int16).reshape(12, 2)]
    read = lambda blocks: done([tensor[torch.tensor(blocks)] for tensor in kv])  # noqa: E731
    assert both.giver.send_ahead("a", [(0, 0), (1, 0)], read([3, 7]))
    assert both.giver.send_ahead("a", [(0, 1), (1, 1)], read([4, 8]))
    assert both.giver.offer(item("a", [[3, 4, 5], [0, 8, 9]], read([5, 9]), [2, 2]))
    came = until(both.taker.take)
    assert came.request.request_id == "a"
    for got, tensor in zip(came.content.result(), kv, strict=True):
        assert torch.equal(got.view(torch.int16), tensor[torch.tensor([3, 4, 5, 8, 9])].view(torch.int16))
    both.close()


def test_a_slot_is_held_until_its_sequence_is_taken_or_dropped(ends: Ends) -> None:
    assert ends.giver.send_ahead("a", [(0, 0)], done([1]))
    assert ends.giver.offer(item("b", [[2]], done([2]), [0]))
    assert not ends.giver.offer(item("c", [[3]], done([3]), [0]))
    assert ends.giver.has_room_for("a")
    ends.giver.drop("a")
    until(lambda: ends.giver.has_room_for("c"))
    assert until(ends.taker.take).content.result() == [2]
    until(lambda: not ends.giver._slots)


def test_what_lacks_a_piece_or_is_broken_is_an_error_of_its_own_request(ends: Ends) -> None:
    broken: Future[Any] = Future()
    broken.set_exception(RuntimeError("no copy"))
    until(
        lambda: ends.giver.offer(item("lacking", [[1, 2]], done([2]), [1]))
    )  # a slot is free again a moment after a sequence is taken
    with pytest.raises(Exception, match="1 of 2 blocks did not come"):
        until(ends.taker.take).content.result()
    until(lambda: ends.giver.offer(item("broken", [[1]], broken, [0])))
    with pytest.raises(Exception, match="no copy"):
        until(ends.taker.take).content.result()
    until(lambda: ends.giver.offer(item("good", [[1]], done([1]), [0])))
    assert until(ends.taker.take).content.result() == [1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p, f: (p, [bytes([f[0][0] ^ 1]) + bytes(f[0])[1:]]), "damaged"),
        (lambda p, f: (p, [bytes(f[0])[:-1]]), "bytes for"),
        (lambda p, _: (p, []), "0 frames where 1"),
        (lambda p, f: ([Part("object", p[0].shape, p[0].crc)], f), "no tensor is object"),
        (lambda p, f: ([Part("float32", (-1, 3), p[0].crc)], f), "no tensor is float32"),
    ],
)
def test_frames_are_checked(change: Callable[[Any, Any], Any], words: str) -> None:
    codec = TensorCodec()
    parts, frames = change(*codec.pack([torch.ones(2, 3)]))
    with pytest.raises(Exception, match=words):
        codec.unpack(parts, frames)


def test_a_silent_taker_closes_the_port_and_a_new_one_opens_it_without_the_old_ones_slots(tmp_path: Path) -> None:
    ends = Ends(tmp_path, IdCodec(), capacity=2, silence_s=2.0)
    ends.giver.offer(item("a", [[1]], done([1]), [0]))
    until(lambda: ends.taker.holds("a"))
    assert [left.request.request_id for left in ends.taker.close()] == ["a"]
    until(lambda: ends.giver.closed)
    assert not ends.giver.offer(item("b", [[1]], done([1]), [0]))
    ends.taker = RemoteTaker(ends.address, ends.codec, capacity=2)
    until(lambda: not ends.giver.closed)
    assert ends.giver.offer(item("b", [[1]], done([1]), [0]))
    assert ends.giver.offer(item("c", [[1]], done([1]), [0]))
    assert until(ends.taker.take).request.request_id == "b"
    ends.close()


def test_for_whom_there_is_no_room_goes_without_its_kv_where_it_can_be_recalled(tmp_path: Path) -> None:
    ends = Ends(tmp_path, IdCodec(), capacity=1)
    bare = replace(item("bare", [], None, []), blocks=())
    assert not ends.giver.offer_bare(bare, "no room")  # the taker has no store
    ends.taker.recalls = True
    until(lambda: ends.giver.offer_bare(bare, "no room"))  # its next greeting says so
    assert ends.giver.has_room_for("other")  # it holds no slot
    came = until(ends.taker.take)
    assert came.output_ids == (4,)
    with pytest.raises(Exception, match="no room"):
        came.content.result()
    until(lambda: not ends.giver._bare)
    ends.close()


def test_how_many_go_without_their_kv_is_bounded(tmp_path: Path) -> None:
    ends = Ends(tmp_path, IdCodec())
    ends.taker.recalls = True
    names = iter(range(1000))
    until(lambda: ends.giver.offer_bare(item(f"r{next(names)}", [], None, []), "no room"))
    taken = [ends.giver.offer_bare(item(f"r{next(names)}", [], None, []), "no room") for _ in range(MOST_BARE + 5)]
    assert taken.count(True) == MOST_BARE - 1
    ends.close()


def test_the_giver_hears_when_the_taker_last_got_on(ends: Ends) -> None:
    until(lambda: ends.giver.has_room_for("a"))
    assert ends.giver.moved_s == -math.inf
    moved = time.monotonic()
    ends.taker.moved(moved)
    until(lambda: ends.giver.moved_s >= moved)  # one clock here; on two machines only the distance counts


def test_an_end_that_comes_before_its_sequence_is_remembered(ends: Ends) -> None:
    ends.taker.end_later("a", "abort")
    assert ends.taker.end_of("a") == "abort"
    assert ends.taker.end_of("a") is None


def test_engines_move_every_block_once_and_most_of_a_long_prompt_ahead(ends: Ends) -> None:
    workers = MovingWorker(), MovingWorker()
    engines = engine_with("prompt", ends.giver, workers[0]), engine_with("completion", ends.taker, workers[1])
    prompt = [i % 7 for i in range(200)]
    engines[0].submit(Request(request_id="a", prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=6)))
    deltas: list[Any] = []

    def turn() -> bool:
        for engine in engines:
            deltas.extend(engine.tick())
        return bool(deltas) and deltas[-1].finish_reason is not None

    ahead = 0
    while not any(delta.token_ids for delta in deltas):
        turn()
        ahead = max(ahead, sum(len(p) for known in ends.taker._givers.values() for p, _ in known.pieces.get("a", [])))
    until(turn)
    tokens = list(prompt)
    for _ in range(6):
        tokens.append(rolling_token(tokens))
    assert [token for delta in deltas for token in delta.token_ids] == tokens[200:]
    sources = [source for source, _ in workers[1].moved]
    assert len(sources) == len(set(sources)) == 50
    until(lambda: turn() or all(engine.quiet for engine in engines))
    assert all(engine.core.num_used_blocks == 0 for engine in engines)
