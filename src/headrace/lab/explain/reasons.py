"""Reasons in words: why a slice has its length, what a planner's remark means, what a result brought."""

from __future__ import annotations

from headrace.contract.plan import Clip, Ignored, Note
from headrace.obs import events
from headrace.obs.events import Body

from .story import SliceStory

_CLIPS = {
    Clip.WHOLE: "all it needed",
    Clip.TOKEN_BUDGET: "the token budget was used up",
    Clip.INPUT_BUDGET: "the input budget was used up",
    Clip.LONG_PREFILL: "cut by the long-prefill threshold",
    Clip.MODEL_LENGTH: "cut at the longest length allowed",
    Clip.BLOCKS: "no more KV blocks were free",
    Clip.CHECKPOINT: "cut at a checkpoint",
    Clip.MEDIA: "cut before an image that does not fit",
    Clip.KEYS: "the step's total key length was used up",
    Clip.TIME: "the step's time budget was used up",
    Clip.VERIFICATION: "drafts not worth verifying were left out",
}

_NOTES = {
    Note.HIT: "{value} tokens taken from the prefix cache",
    Note.PREEMPTED: "preempted, gave back {value} blocks; will be recomputed",
    Note.NO_BLOCKS: "waits: {value} KV blocks are missing",
    Note.NO_BUDGET: "waits: no budget left for its {value} tokens",
    Note.NO_SLOT: "{value} waiting: as many sequences run as may",
    Note.NOT_READY: "waits: not ready (a grammar compiles or KV loads)",
    Note.NOT_DRAINED: "waits: {value} tokens of void steps are still out",
    Note.TOO_LONG_FOR_STEP: "waits: its {value} tokens exceed the step's budget and prompts are not cut",
    Note.CLONED: "forked: {value} blocks copied",
}

_IGNORED = {
    Ignored.TOO_LONG: "its prompt leaves no room to generate",
    Ignored.NEVER_FITS: "no step and no pool can ever take it",
    Ignored.PREEMPTED: "it had to give way, and this engine does not recompute",
}

_OUTCOMES = {
    "delivered": "of a void step, kept all the same",
    "dropped": "of a void step, dropped",
    "gone": "the sequence had ended",
    "failed": "failed",
}


def plain(text: str) -> str:
    """Recorded text, safe for a terminal: control characters (escape sequences) become a visible mark."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def clip_reason(clip: int, num_scheduled: int, need: int) -> str:
    """Why a slice has ``num_scheduled`` of ``need`` tokens."""
    return f"{num_scheduled} of {need}: {_CLIPS[Clip(clip)]}"


def note_reason(seq_id: int, code: int, value: int) -> str:
    """A remark in words."""
    if code == Note.NO_BUDGET and seq_id < 0:
        return f"{value} waiting: the token budget was used up"
    if code == Note.IGNORED:
        return f"ended: {_IGNORED[Ignored(value)]}"
    return _NOTES[Note(code)].format(value=value)


def result_reason(piece: SliceStory) -> str:
    """What a slice's result brought."""
    words = [_OUTCOMES[piece.outcome]] if piece.outcome in _OUTCOMES else []
    if piece.emitted:
        words.append(f"emits {', '.join(map(str, piece.emitted))}")
    if piece.num_drafts and piece.num_valid is not None:
        words.append(f"{piece.num_scheduled - piece.num_valid} of {piece.num_drafts} drafts rejected")
    if piece.finish:
        words.append(f"ends: {piece.finish}")
    return "; ".join(words) or "emits nothing"


def happening_text(event: Body) -> str:
    """An event other than a plan, in words, its sequence's name left out."""
    match event:
        case events.Added():
            extra = f", salt {event.salt!r}" if event.salt else ""
            extra += f", adapter {event.adapter!r}" if event.adapter else ""
            extra += "" if event.reads_cache else ", takes no prefix hits"
            extra += f", priority {event.priority}" if event.priority else ""
            return f"added: prompt of {len(event.prompt)}, up to {event.max_tokens} more{extra}"
        case events.Finished():
            return f"ended from outside: {plain(event.reason)}"
        case events.Committed():
            return f"step {event.step} committed, tokens back: {len(event.tokens)}"
        case events.Failed():
            return f"step {event.step} failed: {plain(event.message)}"
        case events.Drafted():
            return f"drafts to verify: {len(event.tokens)}"
        case events.Readied():
            return "ready" if event.ready else "not ready"
        case events.CacheReset():
            return "prefix cache reset" + (", running sequences too" if event.running else "")
        case events.Forked():
            return f"forked from sequence {event.parent}"
        case events.Placed():
            return "prefilled elsewhere, got its blocks"
        case events.Imported():
            return f"stored KV of tokens {event.first} to {event.num_tokens} was taken into the pool"
        case events.Judged():
            return f"drafts judged: {', '.join(f'{c:g}' for c in event.confidences)}"
        case events.Priced():
            return f"cost of steps known for {len(event.sizes)} sizes"
    raise TypeError(type(event).__name__)
