"""What of a prompt's KV goes ahead of its sequence: full blocks, as soon as the step that fills them is launched.

So only the last step's blocks are left to move when the prompt is done. A block's content depends on the tokens alone:
what went ahead stays right when its sequence is preempted and computed again. Never changes what is computed.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from headrace.contract.errors import HeadraceError
from headrace.contract.handoff import GivingEnd, KVMover

from .book import Entry
from .roster import Roster

MOST_LOOKED_AT = 4  # prompts are computed in order, and a look at one copies its tokens


class Ahead:
    """For sequences under way, how many leading blocks of each group were sent. Used by the loop's thread."""

    def __init__(self, port: GivingEnd, mover: KVMover, block_size: int) -> None:
        self._port, self._mover, self._block_size = port, mover, block_size
        self._sent: dict[str, list[int]] = {}

    def turn(self, roster: Roster) -> None:
        """Sends what is new; forgets what has ended."""
        for name in [name for name in self._sent if not roster.has(name)]:
            del self._sent[name]
            self._port.drop(name)
        if self._port.closed:
            return
        under_way = (entry for entry in roster.entries() if entry.num_reported == 0)
        for entry in islice(under_way, MOST_LOOKED_AT):
            if self._port.has_room_for(entry.request_id):
                self._send(roster, entry)

    def _send(self, roster: Roster, entry: Entry) -> None:
        seen: Any = roster.core.inspect(entry.seq_id)
        if seen is None or not seen["num_computed"]:
            return
        blocks, full = seen["blocks"], seen["num_computed"] // self._block_size
        sent = self._sent.get(entry.request_id, [0] * len(blocks))
        places = [(g, p) for g, group in enumerate(blocks) for p in range(sent[g], min(full, len(group))) if group[p]]
        if not places:
            return
        try:
            content = self._mover.read_blocks([blocks[g][p] for g, p in places])
        except HeadraceError:  # the device is stuck or gone: whoever steps will say so
            return
        if self._port.send_ahead(entry.request_id, places, content):
            self._sent[entry.request_id] = [max(gone, min(full, len(group))) for gone, group in zip(sent, blocks)]

    def leave(self, request_id: str, num_groups: int) -> list[int]:
        """How many blocks of each group went ahead of a sequence that leaves now."""
        return self._sent.pop(request_id, [0] * num_groups)
