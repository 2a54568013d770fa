"""Whose turn it is, in steps of a pretended engine. No clock is read."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.api.tenants.fair_queue import FairQueue, Ticket

BUDGET = 512


def nothing() -> None:
    """A turn that nobody waits for."""


@dataclass(eq=False)
class Job:
    tenant: str
    arrives: int
    prompt: int
    answer: int
    first_at: int | None = None
    ticket: Ticket | None = None


@dataclass
class PretendedEngine:
    """Each step decodes one token per running job and computes prompts in order with what is left of the budget."""

    queue: FairQueue
    prefilling: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)

    def arrive(self, job: Job) -> None:
        job.ticket = Ticket(job.tenant, job.prompt, lambda: self.prefilling.append(job))
        self.queue.offer(job.ticket)

    def step(self, now: int) -> None:
        left = BUDGET - len(self.running)
        for job in list(self.running):
            self.token(job)
        while self.prefilling and self.prefilling[0].prompt <= left:
            job = self.prefilling.pop(0)
            left -= job.prompt
            job.first_at = now + 1
            self.running.append(job)
            self.token(job)

    def token(self, job: Job) -> None:
        assert job.ticket is not None
        self.queue.started(job.ticket)
        self.queue.count_tokens(job.ticket, 1)
        job.answer -= 1
        if not job.answer:
            self.running.remove(job)
            self.queue.leave(job.ticket)


def run(jobs: list[Job], steps: int = 3000, slots: int = 32) -> None:
    engine = PretendedEngine(FairQueue({"flood": 1.0, "quiet": 1.0}, slots, BUDGET))
    for now in range(steps):
        for job in jobs:
            if job.arrives == now:
                engine.arrive(job)
        engine.step(now)


def quiet() -> list[Job]:
    rng = random.Random(3)
    return [Job("quiet", rng.randrange(40, 1000), rng.randrange(20, 400), rng.randrange(5, 30)) for _ in range(60)]


def p95(jobs: list[Job]) -> int:
    waits = sorted(job.first_at - job.arrives for job in jobs if job.first_at is not None)
    assert len(waits) == len(jobs)
    return waits[int(0.95 * (len(waits) - 1))]


def test_a_flood_at_most_doubles_the_others_wait_and_adds_a_step() -> None:
    alone, beside = quiet(), quiet()
    run(alone)
    flood = [Job("flood", 0, 200, 60) for _ in range(800)]
    run([*flood, *beside])
    assert p95(beside) <= 2 * p95(alone) + 1
    assert sum(job.first_at is not None for job in flood) > 300  # the flood is served all the same


def test_tokens_are_shared_by_weight() -> None:
    queue = FairQueue({"a": 3.0, "b": 1.0}, slots=1, window=10**9, share=1.0)
    order: list[str] = []
    tickets = []
    for name in "ab" * 40:
        tickets.append(Ticket(name, 10, lambda name=name: order.append(name)))  # type: ignore[misc]
        queue.offer(tickets[-1])
    while len(order) < 40:
        [busy] = [ticket for ticket in tickets if ticket.state == "prefilling"]
        queue.leave(busy)
    assert order[:40].count("a") in range(28, 33)


def test_idling_earns_no_credit() -> None:
    queue = FairQueue({"a": 1.0, "b": 1.0}, slots=1, window=10**9)
    first = Ticket("a", 1000, nothing)
    queue.offer(first)
    queue.started(first)
    order: list[str] = []
    for name in ("b", "b", "b", "a"):
        queue.offer(Ticket(name, 10, lambda name=name: order.append(name)))  # type: ignore[misc]
    queue.leave(first)
    assert order == ["a"]  # b is level with a, not a thousand tokens ahead of it


def test_idling_while_nobody_is_there_earns_no_credit_either() -> None:
    queue = FairQueue({"a": 1.0, "b": 1.0}, slots=1, window=10**9)
    gone = Ticket("a", 1000, nothing)
    queue.offer(gone)
    queue.started(gone)
    queue.count_tokens(gone, 500)
    queue.leave(gone)
    first, order = Ticket("b", 10, nothing), list[str]()
    queue.offer(first)  # alone: nobody to be level with but who was there before
    for name in "bbba":
        queue.offer(Ticket(name, 10, lambda name=name: order.append(name)))  # type: ignore[misc]
    queue.leave(first)
    assert order == ["a"]


def test_a_wide_request_holds_up_nobody() -> None:
    queue = FairQueue({"a": 1.0, "b": 1.0, "c": 1.0}, slots=64, window=10**9)
    queue.offer(Ticket("b", 100, nothing))
    for _ in range(64):
        queue.offer(Ticket("c", 0, nothing))
    assert (queue.running("b"), queue.running("c"), queue.waiting("c")) == (1, 48, 16)
    queue.offer(Ticket("a", 100, nothing))
    assert queue.running("a") == 1


def test_who_comes_while_a_long_prompt_is_computed_does_not_wait_for_its_tokens() -> None:
    queue = FairQueue({"a": 1.0, "b": 1.0}, slots=2, window=10**9)
    first, second = Ticket("a", 1000, nothing), Ticket("b", 10, nothing)
    queue.offer(first)
    queue.offer(second)
    assert second.rank < first.rank  # the engine, too, computes it first


def test_one_tenant_never_holds_every_slot_but_alone_all_of_them() -> None:
    queue = FairQueue({"a": 1.0, "b": 1.0}, slots=8, window=10**9)
    for _ in range(20):
        queue.offer(Ticket("a", 1, nothing))
    assert queue.running("a") == 6
    alone = FairQueue({"a": 1.0}, slots=8, window=10**9)
    for _ in range(20):
        alone.offer(Ticket("a", 1, nothing))
    assert alone.running("a") == 8


def test_what_is_larger_than_the_bounds_goes_alone() -> None:
    queue = FairQueue({"a": 1.0}, slots=2, window=10)
    small, large, after = Ticket("a", 1, nothing), Ticket("a", 100, nothing), Ticket("a", 1, nothing)
    for ticket in (small, large, after):
        queue.offer(ticket)
    assert [one.state for one in (small, large, after)] == ["prefilling", "waiting", "waiting"]
    queue.leave(small)
    assert [one.state for one in (large, after)] == ["prefilling", "waiting"]
    queue.leave(large)
    assert after.state == "prefilling"


@pytest.mark.parametrize("seed", range(20))
def test_all_room_comes_back_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    queue = FairQueue({"a": 1.0, "b": 2.0}, slots=4, window=50)
    tickets: list[Ticket] = []
    for _ in range(400):
        action = rng.randrange(4)
        if action == 0 or not tickets:
            tickets.append(Ticket(rng.choice("ab"), rng.randrange(60), nothing))
            queue.offer(tickets[-1])
        else:
            ticket = rng.choice(tickets)
            (queue.started, queue.leave, queue.leave)[action - 1](ticket)
    for ticket in tickets:
        queue.leave(ticket)
        queue.leave(ticket)
    for name in "ab":
        assert (queue.waiting(name), queue.running(name)) == (0, 0)
    last = [Ticket("a", 10, nothing), Ticket("b", 10, nothing)]
    for ticket in last:
        queue.offer(ticket)
    assert [ticket.state for ticket in last] == ["prefilling"] * 2


@pytest.mark.parametrize("names", ["ab", "a"])
def test_what_waits_inside_the_engine_holds_nobody_up(names: str) -> None:
    """Constraints that compile, say: the engine has nothing to do, so whoever comes next is let in."""
    queue, order = FairQueue(dict.fromkeys("abc" if len(names) > 1 else "a", 1.0), slots=8, window=64), list[str]()
    late = [Ticket(name, 100, nothing, waits=True) for name in names]
    for ticket in late:
        queue.offer(ticket)
    assert {ticket.state for ticket in late} == {"prefilling"}
    last = Ticket("c" if len(names) > 1 else "a", 20, lambda: order.append("last"))
    queue.offer(last)
    assert order == ["last"]
    for ticket in [*late, last]:
        queue.started(ticket)
        queue.leave(ticket)
    full = [Ticket("a", 32, nothing), Ticket("a", 32, nothing), Ticket("a", 32, nothing)]
    for ticket in full:
        queue.offer(ticket)
    assert [ticket.state for ticket in full].count("prefilling") == 64 // 32 // len(names)  # the window is as it was


def test_a_turn_that_came_to_nothing_costs_nothing() -> None:
    queue = FairQueue({"a": 2.0, "b": 1.0}, slots=4, window=1000)
    gone, after = Ticket("a", 400, nothing), Ticket("a", 10, nothing)
    queue.offer(gone)
    queue.forgive(gone)
    queue.leave(gone)
    queue.offer(after)
    assert (gone.rank, after.rank) == (200, 5)


def test_tenants_that_ask_for_nothing_cost_nothing() -> None:
    class Counting(dict[str, object]):
        looked = 0

        def values(self) -> object:  # type: ignore[override]
            Counting.looked += len(self)
            return super().values()

    queue = FairQueue({f"t{i}": 1.0 for i in range(10_000)}, slots=4, window=1000)
    queue._lines, queue._active = Counting(queue._lines), Counting()  # type: ignore[assignment]
    for name in ("t1", "t9999"):
        ticket = Ticket(name, 10, nothing)
        queue.offer(ticket)
        queue.started(ticket)
        queue.leave(ticket)
    assert ticket.state == "over"
    assert Counting.looked < 20
    assert not queue._active
