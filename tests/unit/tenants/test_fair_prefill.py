"""What a flood of prompts costs another tenant's first token, where a step lasts as long as the tokens in it.

The pretended engine plans as the mixed planner does under the priority policy: whoever generates, then prompts by their
rank, running and waiting alike, each with at most five eighths of a budget.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.api.tenants.fair_queue import FairQueue, Ticket

IDLE = 8  # a step costs so many tokens' time whatever is in it


@dataclass(eq=False)
class Job:
    tenant: str
    arrives: int
    prompt: int
    answer: int
    left: int = 0
    first_at: int | None = None
    ticket: Ticket | None = None


@dataclass
class PretendedEngine:
    queue: FairQueue
    budget: int
    now: int = 0
    running: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)

    def arrive(self, job: Job) -> None:
        job.left = job.prompt
        job.ticket = Ticket(job.tenant, job.prompt, lambda: self.waiting.append(job))
        self.queue.offer(job.ticket)

    def step(self) -> None:
        left, done = self.budget, list[Job]()
        prompts = [*(job for job in self.running if job.left > 1), *self.waiting]
        prompts.sort(key=lambda job: job.ticket.rank if job.ticket else 0)
        for job in [*(job for job in self.running if job.left <= 1), *prompts]:
            taken = min(max(job.left, 1), self.budget * 5 // 8, left)
            left -= taken
            job.left -= min(taken, job.left)
            if taken and job in self.waiting:
                self.waiting.remove(job)
                self.running.append(job)
            if taken and not job.left:
                done.append(job)
        self.now += IDLE + self.budget - left
        for job in done:
            self.token(job)

    def token(self, job: Job) -> None:
        assert job.ticket is not None
        job.first_at = job.first_at or self.now
        self.queue.started(job.ticket)
        self.queue.count_tokens(job.ticket, 1)
        job.answer -= 1
        if not job.answer:
            self.running.remove(job)
            self.queue.leave(job.ticket)


def run(jobs: list[Job], budget: int, until: int = 400_000) -> None:
    engine = PretendedEngine(FairQueue({"flood": 1.0, "quiet": 1.0}, 64, budget), budget)
    jobs = sorted(jobs, key=lambda job: job.arrives)
    while engine.now < until:
        while jobs and jobs[0].arrives <= engine.now:
            engine.arrive(jobs.pop(0))
        engine.step()


def quiet() -> list[Job]:
    rng = random.Random(5)
    times = [rng.randrange(20_000, 300_000) for _ in range(200)]
    return [Job("quiet", at, rng.randrange(60, 200), rng.randrange(4, 12)) for at in times]


def p95(jobs: list[Job]) -> int:
    waits = sorted(job.first_at - job.arrives for job in jobs if job.first_at is not None)
    assert len(waits) == len(jobs)
    return waits[int(0.95 * (len(waits) - 1))]


@pytest.mark.parametrize("budget", [64, 128, 256, 512])
@pytest.mark.parametrize(("prompt", "answer", "served"), [(300, 64, 900), (2000, 8, 170), (60, 4, 4000)])
def test_a_flood_of_prompts_costs_at_most_the_wait_once_more_and_a_step(
    prompt: int, answer: int, served: int, budget: int
) -> None:
    alone, beside = quiet(), quiet()
    run(alone, budget)
    flood = [Job("flood", 0, prompt, answer) for _ in range(5000)]
    run([*flood, *beside], budget)
    assert p95(beside) <= 2 * p95(alone) + budget
    assert sum(job.first_at is not None for job in flood) > served * budget // 600  # the flood gets what is left
