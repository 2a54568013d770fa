"""Giving space back: expiry, eviction by a policy, and collection by whole segment.

The order is always: entries out, bytes after. So nobody finds an entry whose bytes are gone, and what is interrupted
leaves at most bytes that nobody refers to, which the next collection takes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .ages import expired
from .index import Entry, EntryKey
from .policy import Item
from .segment import PAGE, decode_head, read_page, read_payload, scan
from .writer import open_segment, overwrite, sealed_path

if TYPE_CHECKING:
    from .local import LocalStore

WORTH_MOVING = 0.5  # a segment with more than this share alive is emptied by eviction rather than copied
ROUNDS = 64  # of making room; then the put is refused
AGE_PER_GRAIN = 2  # values by which a grain counts as older for each one before it: more than writing a chain takes
INCOMING: EntryKey = b""  # stands among the entries for what is not stored yet


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
    """Evicts and collects until a value fits; false when it never will, or is itself what should leave first."""
    need = incoming.span + 2 * PAGE
    for _ in range(ROUNDS):
        rows = store.index.all_segments()
        if sum(row.size for row in rows.values()) + need <= store.capacity_bytes:
            return True
        if collect(store) or evict(store, max(need, store.segment_bytes), incoming=incoming):
            continue
        own = rows.get(store.open_segment_number or -1)
        if own is None or own.live > WORTH_MOVING * own.size:
            return False
        store.seal()  # nothing is left but what the open segment wastes
        if not collect(store):
            return False
    return False


def ranked(store: LocalStore, entries: list[tuple[EntryKey, Entry]]) -> list[tuple[EntryKey, Entry]]:
    """Those that leave first, first: expired ones, then by the policy, to which depth counts as age; of equals the
    deepest. What is deep is shared by few and of no use without what is before it."""
    now = store.clock()
    entries = sorted(entries, key=lambda pair: (pair[1].used, -pair[1].depth))
    capacity = len(entries)

    def order(numbered: tuple[int, tuple[EntryKey, Entry]]) -> tuple[bool, float, int]:
        position, (_, entry) = numbered
        item = Item(position - AGE_PER_GRAIN * entry.depth, entry.depth, entry.turn, size=entry.length)
        return not expired(entry.ttl_class, entry.used, now), store.policy.rank(item, capacity), -entry.depth

    return [pair for _, pair in sorted(enumerate(entries), key=order)]


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
    victims, freed = [], 0
    entries = [pair for pair in store.index.all_entries() if tenant in (None, pair[1].tenant)]
    for key, entry in ranked(store, entries if incoming is None else [*entries, (INCOMING, incoming)]):
        if freed >= size or key == INCOMING:
            break
        if store.pinned(key):
            continue
        victims.append(key)
        freed += entry.span
    if freed < least:
        return 0
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


def collect(store: LocalStore, *, everything: bool = False) -> bool:
    """Gives the emptiest sealed segment back, copying what lives in it; false when none is worth it.

    ``everything``: any segment with a dead byte is worth it.
    """
    rows = store.index.all_segments()
    own = store.open_segment_number
    sealed = [n for n in rows if n != own and sealed_path(store.segments, n).exists()]
    if not sealed:
        return False
    number = min(sealed, key=lambda n: rows[n].live / max(1, rows[n].size))
    row = rows[number]
    most = row.size - 2 * PAGE - 1 if everything else WORTH_MOVING * row.size
    if row.live > most:
        return False
    if row.live and not _empty(store, number):
        return False
    store.disk.remove(sealed_path(store.segments, number))
    with store.index.change() as change:
        change.forget_segment(number)
    return True


def _forget_entries(store: LocalStore, number: int) -> None:
    """What still refers to a segment that is gone."""
    lost = [(key, entry) for key, entry in store.index.all_entries() if entry.segment == number]
    with store.index.change() as change:
        for key, entry in lost:
            change.remove_at(key, entry)


def _empty(store: LocalStore, number: int) -> bool:
    """Copies what lives in a segment to the open one; damaged values are left behind. False when some still lives."""
    try:
        fd = open_segment(store.disk, store.segments, number)
    except FileNotFoundError:  # another engine was faster
        _forget_entries(store, number)
        return True
    living = [(key, entry) for key, entry in store.index.all_entries() if entry.segment == number]
    try:
        for key, entry in living:
            _move_value(store, fd, key, entry)
    finally:
        store.disk.close(fd)
    return not any(entry.segment == number for _, entry in store.index.all_entries())


def _move_value(store: LocalStore, fd: int, key: EntryKey, entry: Entry) -> None:
    page = read_page(store.disk, fd, entry.offset)
    head = None if page is None else decode_head(page)
    payload = None if head is None or head.dead else read_payload(store.disk, fd, entry.offset, head)
    if head is None or payload is None or head.key != key[:-1]:
        with store.index.change() as change:
            store.counts.damaged += change.remove_at(key, entry)
        return
    writer, offset = store.append(head, payload)
    moved = (writer.number, offset, entry.length, entry.kind, entry.ttl_class, entry.depth, entry.turn)
    with store.index.change() as change:
        change.set_size(writer.number, writer.size)
        now = change.get(key)
        if now is not None and (now.segment, now.offset) == (entry.segment, entry.offset):
            change.put(key, Entry(*moved, entry.name_space, entry.tenant, entry.created, now.used))


def purge(store: LocalStore, tenant: bytes | None) -> int:
    """Destroys one tenant's values (None: everybody's), evicted ones too: their bytes are overwritten, then forgotten.

    Returns how many entries went. Raises OSError when bytes could not be overwritten; what was done before stays done.
    """
    with store.lock:
        for number in store.index.all_segments():
            with contextlib.suppress(FileNotFoundError):  # collected meanwhile
                _overwrite_values(store, number, tenant)
        doomed = [k for k, e in store.index.all_entries() if tenant is None or e.tenant == tenant]
        with store.index.change() as change:
            count = sum(change.remove(key) for key in doomed)
        store.seal()
        while collect(store):
            pass
        return count


def _overwrite_values(store: LocalStore, number: int, tenant: bytes | None) -> None:
    fd = open_segment(store.disk, store.segments, number, write=True)
    try:
        for offset, head in scan(store.disk, fd, number):
            if not head.dead and (tenant is None or head.tenant == tenant):
                overwrite(store.disk, fd, offset, head)
        store.disk.sync(fd)
    finally:
        store.disk.close(fd)


def check(store: LocalStore) -> tuple[int, int]:
    """Reads and checks every value; returns how many are whole and how many were damaged and dropped."""
    good, before = 0, store.counts.damaged
    for key, _ in store.index.all_entries():
        good += store.get(key[:-1], key[-1]) is not None
    return good, store.counts.damaged - before
