"""What leaves a store: expiry, eviction by a policy, purges. Its bytes go with their segment (`collection.py`).

The order is always: entries out, bytes after. So nobody finds an entry whose bytes are gone; a purge alone destroys the
bytes first, and who finds such an entry meanwhile has a miss.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from headrace.contract.errors import StoreError

from .ages import expired
from .collection import WORTH_MOVING, collect, destroy
from .index import Entry
from .segment import FOOT, PAGE, ValueHead, decode_head, is_mark, read_page, scan
from .writer import open_segment, overwrite, part_path, sealed_path, segment_files

if TYPE_CHECKING:
    from .local import LocalStore

PASSES = 16  # of a purge beside a store that is used; more would chase what is stored now, not what was
ROUNDS = 64  # of making room; then the put is refused


def admit(store: LocalStore, incoming: Entry) -> bool:
    """Makes room for a value, within the quota of its tenant; false when it is worth less than all that would have to
    go for it: of a prompt that is larger than the store the beginning stays, and the rest is not written."""
    if _behind_refused(store.refused, incoming):
        return False
    admitted = within_quota(store, incoming) and make_room(store, incoming)
    store.refused = None if admitted else incoming
    return admitted


def _behind_refused(refused: Entry | None, incoming: Entry) -> bool:
    """Whether it is of the prompt that was refused last, and deeper: it need not be ranked again."""
    if refused is None or incoming.span < refused.span:
        return False
    same = (refused.tenant, refused.name_space, refused.used) == (incoming.tenant, incoming.name_space, incoming.used)
    return same and refused.turn >= incoming.turn and refused.depth < incoming.depth


def make_room(store: LocalStore, incoming: Entry) -> bool:
    """Evicts and collects until a value fits, into the files and into the index; false when it never will, or is itself
    what should leave first."""
    for _ in range(ROUNDS):
        # Head and foot of a segment of its own, perhaps, and the foot of the one that is open.
        need = incoming.span + (2 if store.open_segment_number is None else 3) * PAGE
        rows, crowded = store.index.all_segments(), store.index.count() >= store.most_values
        if not crowded and sum(row.size for row in rows.values()) + need <= store.capacity_bytes:
            return True
        collected = not crowded and collect(store)
        if collected or evict(store, max(need, store.segment_bytes), incoming=incoming):
            continue
        if crowded:
            return False
        own = rows.get(store.open_segment_number or -1)
        if own is None or own.live > WORTH_MOVING * own.size:
            return False
        store.seal()  # nothing is left but what the open segment wastes
        if not collect(store):
            return False
    return False


def within_quota(store: LocalStore, incoming: Entry) -> bool:
    """Makes a tenant's own values give way to its new one; false when that is more than it may have, or is itself
    what should leave first."""
    quota, tenant = store.tenant_quota_bytes, incoming.tenant
    if quota is None or incoming.span > quota:
        return quota is None
    over = store.index.tenant_bytes(tenant) + incoming.span - quota
    if over > 0:
        evict(store, over, tenant, incoming=incoming, least=over)
    return store.index.tenant_bytes(tenant) + incoming.span <= quota


def evict(
    store: LocalStore, size: int, tenant: bytes | None = None, *, incoming: Entry | None = None, least: int = 0
) -> int:
    """Forgets the least valuable entries (of one tenant), ``size`` bytes of them; returns how many.

    Only such as are worth less than ``incoming``; none where these are fewer than ``least`` bytes.
    """
    victims = store.leaving.victims(store, size, tenant, incoming, least)
    with store.index.change() as change:
        count = sum(change.remove(key) for key in victims)
    store.counts.evicted += count
    return count


def expire(store: LocalStore) -> int:
    """Forgets what is too old; returns how many."""
    now = store.clock()
    old = [key for key, entry in store.index.all_entries() if expired(entry.ttl_class, entry.used, now)]
    with store.index.change() as change:
        return sum(change.remove(key) for key in old)


def purge(store: LocalStore, tenant: bytes | None) -> int:
    """Destroys one tenant's values (None: everybody's), evicted ones too: their bytes are overwritten, then forgotten.

    Again and again, until a pass finds nothing and no new file: a server may go on, and move values meanwhile. Returns
    how many entries went. Raises OSError when bytes could not be overwritten, StoreError for a damaged file that is
    still written to; what was done before stays done.
    """
    with store.lock:
        store.seal()
        count, seen, torn = 0, set[int](), set[int]()
        for _ in range(PASSES):
            numbers = set(segment_files(store.segments))
            found, torn = _overwrite_values(store, sorted(numbers), tenant)
            removed = _remove_entries(store, tenant, torn)
            count += removed
            if not found and not removed and numbers <= seen:
                break
            seen |= numbers
        for number in torn:
            _destroy_torn(store, number)
        store.seal()
        while collect(store):
            pass
        return count


def _overwrite_values(store: LocalStore, numbers: list[int], tenant: bytes | None) -> tuple[int, set[int]]:
    """How many values of a tenant these segments had, and which segments cannot be read through."""
    found, torn = 0, set[int]()
    ends = dict.fromkeys(numbers, 0)
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):  # collected meanwhile
            here, ends[number], whole = _overwrite_segment(store, number, tenant)
            found += here
            torn |= set() if whole else {number}
    # In a file that is written to nothing marks the end; what the index knows behind it tells of the damage.
    behind = {e.segment for _, e in store.index.all_entries() if 0 < ends.get(e.segment, 0) <= e.offset}
    return found, torn | {number for number in behind if _torn_before(store, number, ends[number])}


def _overwrite_segment(store: LocalStore, number: int, tenant: bytes | None) -> tuple[int, int, bool]:
    """How many values of a tenant it had, where the last value ended, and whether that is the end of the segment."""
    fd = open_segment(store.disk, store.segments, number, write=True)
    try:
        found, end = 0, PAGE
        for offset, head in scan(store.disk, fd, number):
            end = offset + head.span
            if not head.dead and (tenant is None or head.tenant == tenant):
                overwrite(store.disk, fd, offset, head)
                found += 1
        if found:
            store.disk.sync(fd)
        foot = read_page(store.disk, fd, end)
        sealed = sealed_path(store.segments, number).exists()
        return found, end, not sealed or (foot is not None and is_mark(foot, FOOT, number))
    finally:
        store.disk.close(fd)


def _torn_before(store: LocalStore, number: int, end: int) -> bool:
    """Whether there is no value at ``end``, where a scan ended: else one has only been written since."""
    with contextlib.suppress(FileNotFoundError):
        fd = open_segment(store.disk, store.segments, number)
        try:
            page = read_page(store.disk, fd, end)
            return page is None or decode_head(page) is None
        finally:
            store.disk.close(fd)
    return False


def _remove_entries(store: LocalStore, tenant: bytes | None, torn: set[int]) -> int:
    """Forgets a tenant's entries. What they point at in torn segments no scan has come to: it is overwritten here."""
    doomed = [(key, entry) for key, entry in store.index.all_entries() if tenant in (None, entry.tenant)]
    for _, entry in doomed:
        if entry.segment in torn:
            with contextlib.suppress(FileNotFoundError):
                _overwrite_at(store, entry)
    with store.index.change() as change:
        return sum(change.remove(key) for key, _ in doomed)


def _overwrite_at(store: LocalStore, entry: Entry) -> None:
    """A value by its place, its header being whole or not; never another tenant's."""
    fd = open_segment(store.disk, store.segments, entry.segment, write=True)
    try:
        page = read_page(store.disk, fd, entry.offset)
        head = None if page is None else decode_head(page)
        if head is None and page is not None:
            head = ValueHead(bytes(32), entry.kind, entry.length, entry.name_space, entry.tenant)
        if head is not None and not head.dead and head.tenant == entry.tenant:
            overwrite(store.disk, fd, entry.offset, head)
            store.disk.sync(fd)
    finally:
        store.disk.close(fd)


def _destroy_torn(store: LocalStore, number: int) -> None:
    """A torn segment may hold values that nobody can find by tenant: all of it goes."""
    part = part_path(store.segments, number)
    if part.exists():
        raise StoreError(str(part), "is damaged, and an engine still writes to it: purge again when that has ended")
    destroy(store, number)


def check(store: LocalStore) -> tuple[int, int]:
    """Reads and checks every value; returns how many are whole and how many were damaged and dropped."""
    good, before = 0, store.counts.damaged
    for key, _ in store.index.all_entries():
        good += store.get(key[:-1], key[-1]) is not None
    return good, store.counts.damaged - before
