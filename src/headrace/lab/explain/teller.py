"""The teller: replays a recording and looks at the scheduler between calls. It only reads.

Counts come from the scheduler itself, not from a second opinion kept here. It stops at the first difference
between recording and replay, since nothing after it would be true.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.contract.plan import Clip, Finish, Note, Outcome
from headrace.lab.replay import Difference, Player
from headrace.obs import events
from headrace.obs.events import Body
from headrace.obs.recording import Recording

from .reasons import clip_reason, happening_text, note_reason, plain, result_reason
from .story import FREE_QUEUE_SHOWN, Counts, Happening, NoteStory, SliceStory, StepStory, Story

_NO_COUNTS = Counts(0, 0, 0, 0, 0)


def _counts_of(state: dict[str, Any]) -> Counts:
    return Counts(*(state[name] for name in Counts.__struct_fields__))


@dataclass
class Teller:
    """Tells steps ``first`` .. ``last`` (inclusive). ``steps()`` once; the other fields are filled by it."""

    recording: Recording
    first: int
    last: int
    held: dict[int, list[list[int]]] = field(default_factory=dict)
    happenings: list[Happening] = field(default_factory=list)
    difference: Difference | None = None
    _before: dict[int, Counts] = field(default_factory=dict)
    _open: list[StepStory] = field(default_factory=list)
    _prompt_len: dict[int, int] = field(default_factory=dict)
    _number: int = 0
    _core: Any = None

    def steps(self) -> Iterator[StepStory]:
        """Steps in plan order, each once its result is in (or the recording ends). Raises RecordingError."""
        player = Player(self.recording)
        self._core = player.core
        for index, event in enumerate(self.recording.events):
            told = self._told
            if told and isinstance(event, events.Planned):
                self._look_before(event)
            result, self.difference = player.play(index)
            if self.difference is not None:
                break
            self._take(event, result, self.recording.line(index), told)
            while self._open and self._open[0].outcome is not None:
                yield self._open.pop(0)
            if self._number > self.last and not self._open:
                break
        yield from self._open

    @property
    def _told(self) -> bool:
        """Whether the step now due is asked for."""
        return self.first <= self._number <= self.last

    def _counts(self, seq_id: int) -> Counts | None:
        state = self._core.inspect(seq_id)
        return None if state is None else _counts_of(state)

    def _look_before(self, event: events.Planned) -> None:
        if not self.held and self._number == self.first:
            self.held = {i: self._core.inspect(i)["blocks"] for i in self._core.running_ids()}
        self._before = {i: self._counts(i) or _NO_COUNTS for i in event.seq_ids}

    def _take(self, event: Body, result: Any, line: int, told: bool) -> None:
        if isinstance(event, events.Planned):
            if told:
                self._open.append(self._step(event, line))
                self.happenings = []
            self._number += event.step >= 0
            return
        if isinstance(event, events.Added):
            self._prompt_len[event.seq_id] = len(event.prompt)
        if isinstance(event, events.Committed | events.Failed):
            self._returned(event, result)
        if told or self._told:
            kind = type(event).__struct_config__.tag
            seq_id = getattr(event, "seq_id", -1)
            self.happenings.append(Happening(line, event.t, str(kind), seq_id, happening_text(event)))

    # -- a plan -----------------------------------------------------------------------------------------

    def _step(self, event: events.Planned, line: int) -> StepStory:
        slots = int(self.recording.config.core.get("draft_slots", 0))
        total = sum(event.num_scheduled)
        story = StepStory(
            step=event.step,
            line=line,
            t=event.t,
            token_budget=event.token_budget_left + total,
            input_budget=event.input_budget_left + total + slots * len(event.seq_ids),
            token_budget_left=event.token_budget_left,
            input_budget_left=event.input_budget_left,
            num_free_blocks=event.num_free_blocks,
            running=self._core.running_ids(),
            waiting=self._core.waiting_ids(),
            free_queue=self._core.free_queue()[:FREE_QUEUE_SHOWN].tolist(),
            slices=[],
            notes=[
                NoteStory(seq_id, Note(code).name.lower(), value, note_reason(seq_id, code, value))
                for seq_id, code, value in zip(event.note_seqs, event.note_codes, event.note_values)
            ],
            happenings=self.happenings,
            outcome=None if event.step >= 0 else "empty",
        )
        tokens, inputs = story.token_budget, story.input_budget
        for i, num_scheduled in enumerate(event.num_scheduled):
            tokens, inputs = tokens - num_scheduled, inputs - num_scheduled - slots
            story.slices.append(self._slice(event, i, tokens, inputs))
        return story

    def _slice(self, event: events.Planned, i: int, tokens_left: int, inputs_left: int) -> SliceStory:
        seq_id, q, drafts = event.seq_ids[i], event.num_scheduled[i], event.num_drafts[i]
        state = self._core.inspect(seq_id)
        planned = _counts_of(state)
        # What is left after the slice is what it lacked. Drafts that were cut are not missed.
        missing = planned.num_tokens + planned.num_promised - planned.num_computed
        need = q if event.samples[i] else q + missing
        fresh = i in event.fresh_slices
        groups = self.recording.num_groups
        return SliceStory(
            seq_id=seq_id,
            kind=self._kind(event, i),
            first_position=event.num_computed[i],
            need=need,
            num_scheduled=q,
            num_drafts=drafts,
            samples=bool(event.samples[i]),
            clip=Clip(event.clips[i]).name.lower(),
            why=clip_reason(event.clips[i], q, need),
            num_cached=event.fresh_cached[event.fresh_slices.index(i)] if fresh else 0,
            fresh=fresh,
            token_budget_left=tokens_left,
            input_budget_left=inputs_left,
            block_starts=event.block_starts[i * groups : (i + 1) * groups],
            tables=state["blocks"],
            before=self._before.get(seq_id, _NO_COUNTS),
            planned=planned,
        )

    def _kind(self, event: events.Planned, i: int) -> str:
        """``verify`` has drafts, ``decode`` computes one sampled token; all else is ``prefill``."""
        if event.num_drafts[i]:
            return "verify"
        past_prompt = event.num_computed[i] >= self._prompt_len.get(event.seq_ids[i], 0)
        return "decode" if past_prompt and event.samples[i] and event.num_scheduled[i] == 1 else "prefill"

    # -- a result ---------------------------------------------------------------------------------------

    def _returned(self, event: events.Committed | events.Failed, result: Any) -> None:
        story = next((s for s in self._open if s.step == event.step), None)
        if story is None:
            return
        story.t_returned = event.t
        if isinstance(event, events.Failed):
            story.outcome, story.message = "fail", plain(event.message)
            for piece in story.slices:
                piece.outcome = "failed"
        else:
            story.outcome = "commit"
            _write_results(story, event, result)
        for piece in story.slices:
            piece.returned = self._counts(piece.seq_id)
            piece.result = result_reason(piece)


def _write_results(story: StepStory, event: events.Committed, result: Any) -> None:
    offsets, tokens = result.offsets.tolist(), result.tokens.tolist()
    for i, piece in enumerate(story.slices):
        finish = Finish(int(result.finishes[i]))
        piece.outcome = Outcome(int(result.outcomes[i])).name.lower()
        piece.num_valid = event.num_valid[i]
        piece.emitted = tokens[offsets[i] : offsets[i + 1]]
        piece.finish = None if finish == Finish.NONE else finish.name.lower()


def tell(recording: Recording, first: int, last: int) -> Story:
    """The whole story of steps ``first`` .. ``last`` at once. Raises RecordingError."""
    teller = Teller(recording, first, last)
    steps = list(teller.steps())
    config = recording.config
    return Story(
        path=recording.path,
        title=plain(config.title),
        headrace=plain(config.headrace),
        time=config.time,
        core=config.core,
        num_blocks=int(config.core["num_blocks"]) - 1,
        names={seq_id: plain(name) for seq_id, name in config.names.items()},
        num_steps=recording.num_steps,
        first=first,
        last=last,
        truncated=recording.truncated,
        steps=steps,
        happenings_after=teller.happenings,
        held=teller.held,
        difference=None if teller.difference is None else str(teller.difference),
    )
