"""One shard of `mqlake.sessions`: who holds which session, and what its owner does about it.

Every reader of a shard applies its records in their order and comes to the same state; nothing is
decided anywhere else. For each client:

                        claim                                 release, or the owner
                  ┌───────────────► held ◄──────────────┐     settles a dead holder
    nobody ───────┘                  │ ▲                │              │
      ▲                        claim │ │ own records    └── the claim that waits ──┐
      │                              ▼ │                                           │
      └────────── nobody waits ◄── held, another waits ────────────────────────────┘

- A claim that finds nobody holds the session from its own place on: its offset is the *epoch*.
- One that finds a holder waits until that has let go; a later one takes its place.
- Of a held session records count that say its epoch. Once it was let go of, or settled by the
  owner, no record of that epoch counts: a gateway that was paused cannot write over what came
  after it.
- Records that the owner of the shard has written say the owner's epoch, the offset of its record
  `o/owner`; those of an earlier owner do not count behind a later one's.

One owner acts at a time, or a will that one is about to publish would be published by the next,
which does not find it yet. So a new owner acts when those before it have left, a record behind
their last act, or are silent; and an owner does what nobody can undo, publish a will or begin a
session that no record tells of, only while it is certain to be heard (`PublishWills`).

A clean session whose shard its own gateway owns is *free*: while nothing is stored under its name,
the owner begins it without a record, and remembers that it has (`Shard.take`). Whoever claims it is
given it once the owner has let go of it. When the shard changes its owner, the one before claims
what it has begun so, and leaves behind that; who came meanwhile has it instead. An owner that
others may have taken for silent serves nobody before it has read what they have done, and before
the next owner has answered these claims: that one may have begun the same sessions itself.

A record that does not count may be the last under its key, and compaction would leave nothing else:
then the owner writes what counts once more, or has the holder do it.

The owner acts in coroutines (`ingest.session.effects`). What it tells others may be lost with it: a
gateway whose claim nobody answers repeats it, and a new owner looks at every claim that waits. So
each of them may be done twice, and none needs to be remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingest.session import acts
from ingest.session.effects import Append, ShardRecord
from ingest.session.share_groups import GroupsOfShard
from ingest.session.stored_subscriptions import SubscriptionsOfShard, SubscriptionStore
from mqlake.errors import InvalidRecord
from mqlake.session_records import (
    MARKS,
    PROGRESS,
    SESSION,
    SUBSCRIPTION,
    MarksRecord,
    SessionOutline,
    SessionRecord,
    check_progress,
    decode_marks,
    decode_session,
    is_storing,
    progress_key,
    read_outline,
    session_key,
)
from mqlake.shard_records import (
    CLAIM,
    LEFT,
    MEMBER,
    NO_EPOCH,
    OWNER_KEY,
    PART,
    QUESTION,
    Claim,
    Key,
    Run,
    Stamp,
    claim_key,
    decode_claim,
    decode_run,
    encode_claim,
    encode_run,
    left_key,
    read_stamp,
    stamp_headers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ingest.session.effects import Work
    from mqlake.records import LogRecord

ASK_AGAIN_MS: Final = 2_000
"""How often a holder is asked again to let go."""

FENCE_MS: Final = 60 * 60 * 1000
"""How long the epoch of a session that has ended is remembered: longer than a gateway is paused."""

DUE_AT_ONCE: Final = 500

CONFIRMED_MS: Final = 10_000
"""How long a gateway that has asked what it holds is not settled: its beats may be read later."""

UNKNOWN_RUN: Final = Run("", "")
"""Holder of a session of which only progress has been read."""


@dataclass(slots=True)
class Entry:
    """What a shard says of one client.

    Invariants: `claim` is None unless there is a holder; `granted` is None unless there is one.
    """

    epoch: int = NO_EPOCH
    """Of the last that counted."""
    holder: Run | None = None
    granted: Claim | None = None
    """By which the holder has it, until a record of the session under its epoch has been read."""
    claim: Claim | None = None
    """The newest one, which waits for the holder to let go."""
    session: bytes | None = None
    """The last value that counted; None: there is no session, or none that is written."""
    session_epoch: int = NO_EPOCH
    """Under which it was written: that of the holder before, while `granted` is there."""
    is_proven: bool = True
    """What was before `epoch` is known to be over. Else compaction has removed what says so."""
    closed_at_ms: int | None = None
    """When the holder let go, by the log's time."""
    due_at_ms: int | None = None
    """When the will or the expiry of an absent client's session is due, or a fence is let go of.
    Counts while nobody holds the session."""


class ShardStore(SubscriptionStore[Entry], Protocol):
    """Where a shard keeps its entries: embedded on disk in a gateway."""

    def put(self, key: Key, entry: Entry) -> None: ...
    def delete(self, key: Key) -> None:
        """Forget the entry and its progress; subscriptions stay until their records end."""
        ...

    def progress(self, key: Key) -> bytes | None: ...
    def put_progress(self, key: Key, value: bytes | None) -> None: ...

    def advance(self, key: Key, epoch: int, value: bytes) -> bool:
        """Put progress if the session is held under this epoch; return whether it is."""
        ...

    def holders(self) -> Iterable[Run]:
        """Return which runs hold sessions."""
        ...

    def held_by(self, run: Run, limit: int | None = None) -> list[Key]: ...
    def waiting(self) -> list[Key]:
        """Return for whose session a claim waits."""
        ...

    def due(self, now_ms: int, limit: int) -> list[Key]:
        """Return what is due, the earliest first."""
        ...

    def count(self) -> int:
        """Return how many sessions are stored."""
        ...


class FreeSessions(Protocol):
    """Holds the sessions that a gateway has begun without a claim, as owner of their shard."""

    def let_go(self, key: Key) -> None:
        """End the connection of one that somebody claims; `Shard.untake` when that is done."""
        ...

    def claimed(self, key: Key, number: int, epoch: int) -> None:
        """Note that the claim of one was read: it is free no more, if it is still there."""
        ...


class _NobodyIsFree:
    def let_go(self, key: Key) -> None: ...
    def claimed(self, key: Key, number: int, epoch: int) -> None: ...


NOBODY_IS_FREE: Final[FreeSessions] = _NobodyIsFree()


class Shard:
    """A shard as a gateway reads it, owned or stood by for.

    Args:
        number: Its partition.
        store: Empty.
        me: This run of this gateway.
        start: Takes the coroutines in which the owner acts.

    Attributes:
        owner: Who owns it; None before the first record of an owner was read.
        owner_epoch: Since where.
        is_active: Whether this gateway owns it, and those before it act no more.
        next_offset: The first offset that was not read.
        has_to_leave: It was this gateway's, and others do not know that it acts no more.
        groups: The share groups whose records are in it.
        free: Holds the sessions that were begun without a claim.
        subscriptions: Those that have records of their own.
    """

    def __init__(
        self,
        number: int,
        store: ShardStore,
        me: Run,
        start: Callable[[Shard, Work], None],
    ) -> None:
        self.number = number
        self.store = store
        self.owner: Run | None = None
        self.owner_epoch = NO_EPOCH
        self.is_active = False
        self.next_offset = 0
        self.me = me
        self._start = start
        self._marks: dict[str, bytes] = {}
        # Keys of records under which the last one does not count.
        self._shadowed: dict[tuple[str, Key], None] = {}
        # Clients for whom a coroutine acts.
        self._busy: set[Key] = set()
        self._settling: set[Run] = set()
        # Of dead runs, clients whose messages may still be on their way into the log.
        self._late: dict[Run, set[Key]] = {}
        # How many coroutines act.
        self._acting = 0
        # Owners before this one that may not know it yet.
        self._before: set[Run] = set()
        self.has_to_leave = False
        self._is_leaving = False
        # Clients whose sessions this gateway has begun without a claim, with the number of the one
        # that would be theirs.
        self._taken: dict[Key, int] = {}
        # Numbers of the claims that follow after all, and were not read yet.
        self._claimed: set[int] = set()
        # Clients whose sessions go on under such a claim, which no owner has answered.
        self._going_on: set[Key] = set()
        self.free: FreeSessions = NOBODY_IS_FREE
        self._confirmed_at_ms: dict[Run, int] = {}
        self._asked_at_ms: dict[Key, int] = {}
        self.groups = GroupsOfShard(self)
        self.subscriptions: SubscriptionsOfShard[Entry] = SubscriptionsOfShard(self)

    # What is read

    def apply(self, record: LogRecord) -> None:
        """Take a record in the order of the shard.

        Raises:
            InvalidRecord: It cannot be read; what stood under its key stays.
        """
        self.next_offset = record.offset + 1
        key = record.key or b""
        stamp = read_stamp(record.headers)
        kind, _, rest = _text(key).partition("/")
        tenant, _, client_id = rest.partition("/")
        apply = _KINDS.get(kind)
        if apply is not None and tenant and client_id:
            apply(self, (tenant, client_id), stamp, record)
            return
        if key == OWNER_KEY:
            if record.value is not None:
                self._apply_owner(decode_run(record.value)[0], record.offset)
            return
        if kind == MARKS:
            self._apply_marks(rest, record.value)
            return
        if kind == QUESTION:
            self._apply_question(record)
            return
        if kind == LEFT:
            if record.value is not None:
                self._before.discard(decode_run(record.value)[0])
                self._activate()
            return
        if kind in {PART, MEMBER}:
            self.groups.apply(kind, rest, stamp, record)
            return
        if kind == SUBSCRIPTION and tenant:
            client_id, _, topic_filter = client_id.partition("\0")
            if client_id and topic_filter:
                self.subscriptions.apply((tenant, client_id), topic_filter, stamp, record)
                return
        raise InvalidRecord(f"sessions key {key!r}, expected kind/tenant/client")

    def marks_of(self, run: Run) -> MarksRecord | None:
        """Return how far the settled sessions of a run have come."""
        value = self._marks.get(run.gateway)
        marks = None if value is None else decode_marks(value)
        return None if marks is None or marks.incarnation != run.incarnation else marks

    @property
    def has_taken(self) -> bool:
        """Whether sessions were begun for which no owner of the shard but this one answers."""
        return bool(self._taken)

    def take(self, key: Key, number: int) -> bool:
        """Take a session that nobody holds or has left, without a claim; False: claim it.

        Whoever claims it is given it when it is let go of (`untake`). Only for an owner that is
        certain to be heard, as `PublishWills`.

        Args:
            key: Whose.
            number: Of the claim that follows if the shard changes its owner.
        """
        if not self.is_active or key in self._taken or self.store.get(key) is not None:
            return False
        self._taken[key] = number
        return True

    def untake(self, key: Key) -> None:
        """Note that a session is over that was taken, or not free any more."""
        if self._taken.pop(key, None) is not None:
            self.serve(key)

    def session(self, key: Key) -> SessionRecord | None:
        """Return the stored session, its times those of the log."""
        entry = self.store.get(key)
        return None if entry is None else session_of(entry)

    def _apply_owner(self, owner: Run, offset: int) -> None:
        if self.owner is not None and self.owner != owner:
            self._before.add(self.owner)
            self.has_to_leave = self.has_to_leave or self.owner == self.me
        # An earlier run of its name is over, or this one would not have begun.
        self._before = {run for run in self._before if run.gateway != owner.gateway}
        self.owner = owner
        self.owner_epoch = offset
        self.is_active = False
        self._busy.clear()
        self._settling.clear()
        self._late.clear()
        self._asked_at_ms.clear()
        self._rest()

    def _rest(self) -> None:
        """Go on when the last act is over: with the next ownership, or without any."""
        if self._acting:
            return
        if self.has_to_leave and not self._is_leaving and self.owner != self.me:
            self._is_leaving = True
            self._start(self, self._leave())
        self._activate()

    async def _leave(self) -> None:
        """Claim what was taken, and say that this gateway acts no more."""
        stamp = stamp_headers(self.me.incarnation)
        taken = list(self._taken.items())
        self._claimed.update(number for _, number in taken)
        try:
            await Append(
                [
                    ShardRecord(
                        claim_key(*key),
                        encode_claim(self.me, number, clean_start=True, goes_on=True),
                        stamp,
                    )
                    for key, number in taken
                ]
            )
            await Append([ShardRecord(left_key(self.me.gateway), encode_run(self.me), stamp)])
            self.has_to_leave = False
        finally:
            self._is_leaving = False

    def _activate(self) -> None:
        if self.is_active or self.owner != self.me or self._before or self._acting:
            return
        self.is_active = True
        self.has_to_leave = False
        for kind, key in list(self._shadowed):
            self._write_again(kind, key)
        self.subscriptions.begin()
        for key in (*self.store.waiting(), *self._going_on):
            self.serve(key)
        self._going_on.clear()
        self.groups.begin()

    def _apply_marks(self, gateway: str, value: bytes | None) -> None:
        if value is None:
            self._marks.pop(gateway, None)
        else:
            decode_marks(value)
            self._marks[gateway] = value

    def _apply_question(self, record: LogRecord) -> None:
        if record.value is not None and self.is_active:
            run, number = decode_run(record.value)
            self._confirmed_at_ms[run] = record.timestamp_ms
            late = sorted(self._late.get(run, ()))
            keys = late if run in self._settling else self.store.held_by(run)
            if run == self.me:
                keys += self._taken
            self._act(acts.confirm(self.number, run, number, keys))

    def _apply_claim(self, key: Key, stamp: Stamp, record: LogRecord) -> None:
        entry = self.store.get(key)
        if record.value is None:
            if entry is not None:
                self._end_claim(key, entry, stamp, record.timestamp_ms)
            return
        # One that is repeated, or written again by the owner, says where it stood first.
        epoch = record.offset if stamp.epoch == NO_EPOCH else stamp.epoch
        claim = decode_claim(record.value, epoch, record.timestamp_ms)
        self._shadowed.pop((CLAIM, key), None)
        if claim.goes_on and not self.is_active:
            self._going_on.add(key)
        if claim.run == self.me and claim.number in self._claimed:
            self._claimed.discard(claim.number)
            self.free.claimed(key, claim.number, epoch)
            if entry is not None and entry.holder is not None:
                self.free.let_go(key)
        elif key in self._taken and self.owner != self.me:
            self.free.let_go(key)  # it came before ours, and the next owner gives it away
        if entry is None:
            self._grant(key, Entry(is_proven=False), claim)
        elif _is_same(entry.granted, claim) or _is_same(entry.claim, claim):
            if stamp.owner is None:  # what its gateway was told may be lost
                self._asked_at_ms.pop(key, None)
                self.serve(key)
        elif epoch <= entry.epoch or (entry.claim is not None and epoch < entry.claim.epoch):
            is_held = epoch == entry.epoch and entry.holder == claim.run
            if self.is_active and stamp.owner is None and not is_held:
                self._act(acts.refuse(key, claim))  # it is over, and its gateway does not know
            if entry.claim is not None:
                self._shadow(CLAIM, key, entry)
        elif entry.holder is None:
            self._grant(key, entry, claim)
        elif claim.goes_on:  # somebody has come since, and its gateway lets go of it
            if entry.claim is not None:
                self._shadow(CLAIM, key, entry)
        else:
            before, entry.claim = entry.claim, claim
            self.store.put(key, entry)
            self._asked_at_ms.pop(key, None)
            if before is not None and self.is_active:
                self._act(acts.refuse(key, before))
            self.serve(key)

    def _end_claim(self, key: Key, entry: Entry, stamp: Stamp, now_ms: int) -> None:
        """Take the end of a claim: its session is written, was never written, or is not wanted."""
        epoch = stamp.epoch
        if entry.claim is not None and entry.claim.epoch == epoch:
            entry.claim = None
            self.store.put(key, entry)
        elif entry.granted is not None and entry.granted.epoch == epoch:
            if stamp.owner is not None:
                # Its gateway was dead, or paused, and may write under this epoch yet.
                entry.due_at_ms = now_ms + FENCE_MS
                entry.is_proven = True  # an owner settles what was granted, not what waits
            self._let_go(key, entry)
        elif entry.claim is not None:
            self._shadow(CLAIM, key, entry)

    def _apply_session(self, key: Key, stamp: Stamp, record: LogRecord) -> None:
        entry = self.store.get(key) or Entry()
        if not self.counts(entry, stamp):
            self._shadow(SESSION, key, entry)
            return
        session = None if record.value is None else read_outline(record.value)
        if session is not None and session[:2] != key:
            raise InvalidRecord(f"session under key {record.key!r} is that of another client")
        if self._shadowed:
            self._shadowed.pop((SESSION, key), None)
        self.subscriptions.session_written(key, entry.session, session)
        entry.session, entry.session_epoch = record.value, stamp.epoch
        if session is None:
            self.store.put_progress(key, None)
            entry.due_at_ms = record.timestamp_ms + FENCE_MS
        is_held = session is not None and session.connected
        if stamp.epoch < entry.epoch and entry.holder is not None and not is_held:
            # Of the holder before: a claim has the session already, and what is stored is its.
            entry.closed_at_ms = _closed_at_ms(session, stamp, record)
            self.store.put(key, entry)
            return
        if session is not None and is_held:
            run = Run(session.gateway, session.incarnation)
            granted, entry.granted = entry.granted, None
            if stamp.epoch < entry.epoch and granted is not None and granted.run != run:
                entry.claim = granted  # compaction had removed that somebody holds it
            entry.epoch, entry.holder = stamp.epoch, run
            entry.is_proven = True
            entry.closed_at_ms = entry.due_at_ms = None
            self.store.put(key, entry)
            return
        entry.epoch = max(entry.epoch, stamp.epoch)
        entry.is_proven = True
        entry.closed_at_ms = _closed_at_ms(session, stamp, record)
        self._let_go(key, entry, session)

    def _apply_progress(self, key: Key, stamp: Stamp, record: LogRecord) -> None:
        value = record.value
        if value is not None:
            check_progress(value)
            if stamp.owner is None and self.store.advance(key, stamp.epoch, value):
                return
        entry = self.store.get(key)
        if value is None and (entry is None or entry.session is None):
            return  # with its session
        if entry is not None and not self.counts(entry, stamp):
            self._shadow(PROGRESS, key, entry)
            return
        if self._shadowed:
            self._shadowed.pop((PROGRESS, key), None)
        self.learn_epoch(key, entry, stamp.epoch)
        self.store.put_progress(key, value)

    def learn_epoch(self, key: Key, entry: Entry | None, epoch: int) -> None:
        """Note the epoch of a record that counts, beside the session."""
        if entry is None:
            self.store.put(key, Entry(epoch, UNKNOWN_RUN))
        elif epoch > entry.epoch:
            entry.epoch = epoch
            self.store.put(key, entry)

    def counts(self, entry: Entry, stamp: Stamp) -> bool:
        """Tell whether a record of a session, or of a part of it, is from whoever may write it."""
        is_before = stamp.epoch < entry.epoch
        if stamp.owner is not None:
            # What an owner says of a session is too late behind what a later holder has written.
            return stamp.owner >= self.owner_epoch and stamp.epoch >= entry.session_epoch
        if is_before:
            return not entry.is_proven
        if stamp.epoch > entry.epoch or stamp.epoch == NO_EPOCH:
            return True
        return entry.holder is not None

    # Who holds a session

    def _grant(self, key: Key, entry: Entry, claim: Claim) -> None:
        entry.epoch = claim.epoch
        entry.holder = claim.run
        entry.granted = claim
        entry.claim = None
        self.store.put(key, entry)
        self.serve(key)

    def _let_go(self, key: Key, entry: Entry, session: SessionOutline | None = None) -> None:
        """Note that nobody holds a session any more; the claim that waits gets it."""
        claim = entry.claim
        entry.holder = entry.granted = entry.claim = None
        if entry.session is not None:
            session = session or read_outline(entry.session)
            entry.due_at_ms = session.due_at_ms(entry.closed_at_ms)
        if claim is not None:
            self._grant(key, entry, claim)
        elif entry.session is None and entry.due_at_ms is None:
            self.store.delete(key)
        else:
            self.store.put(key, entry)
            if self.is_active and _is_due(entry) and key not in self._busy:
                assert entry.closed_at_ms is not None
                self.start_for([key], acts.process_due(self, [key], entry.closed_at_ms))

    # What does not count

    def _shadow(self, kind: str, key: Key, entry: Entry) -> None:
        """Note that the last record under a key does not count."""
        self._shadowed[kind, key] = None
        if self.is_active:
            self._write_again(kind, key, entry)

    def _write_again(self, kind: str, key: Key, entry: Entry | None = None) -> None:
        entry = entry or self.store.get(key) or Entry()
        if kind != CLAIM and entry.holder is not None and entry.granted is None:
            # Only its holder knows the newest; ours would be older when it stands in the log.
            run = entry.holder
            self._act(acts.ask(run.gateway, "rewrite", key, entry.epoch))
            self._shadowed.pop((kind, key), None)
            return
        record_key, value = progress_key(*key), self.store.progress(key)
        if kind == SESSION:
            record_key, value = session_key(*key), entry.session
        elif kind == CLAIM:
            claim = entry.claim or entry.granted
            if claim is None:
                self._shadowed.pop((kind, key), None)
                return
            record_key = claim_key(*key)
            value = encode_claim(
                claim.run, claim.number, clean_start=claim.clean_start, goes_on=claim.goes_on
            )
            self._act(_append(ShardRecord(record_key, value, self._stamp(claim.epoch))))
            return
        self._act(_append(ShardRecord(record_key, value, self._stamp(entry.session_epoch))))

    def _stamp(self, epoch: int) -> list[tuple[str, bytes]]:
        return stamp_headers(self.me.incarnation, epoch, self.owner_epoch)

    # What the owner does

    def serve(self, key: Key) -> None:
        """Do what the claims of a client ask for: give the session, or ask its holder for it."""
        if not self.is_active or key in self._busy:
            return
        entry = self.store.get(key)
        if entry is None or entry.holder is None:
            return
        claim = entry.granted
        if claim is not None and claim.goes_on and key in self._taken:
            if claim.run != self.me:
                self._act(acts.refuse(key, claim))
                return
            del self._taken[key]  # the shard is this gateway's again
        if key in self._taken:
            self.free.let_go(key)  # and then it is served
        elif entry.claim is not None:
            self._asked_at_ms.setdefault(key, 0)
            self._act(acts.ask(entry.holder.gateway, "release", key, entry.epoch))
        elif claim is not None:
            self.start_for([key], acts.hand_over(self, key, claim), served=claim.epoch)

    def tick(
        self,
        now_ms: int,
        is_dead: Callable[[Run], bool],
        is_silent: Callable[[Run], bool],
        is_spent: Callable[[Run], bool],
    ) -> None:
        """Do what time brings: settle dead holders, wills and expiries, ask again.

        Args:
            now_ms: By the log's time.
            is_dead: Tells whether a run's lease is over.
            is_silent: Tells whether a run was not heard for so long that its shards go to others.
            is_spent: Tells whether nothing of a dead run can come into the log any more.
        """
        if self.has_to_leave:
            self._rest()  # the record may not have come into the log
        if self.owner == self.me and self._before:
            self._before = {run for run in self._before if not is_silent(run)}
            self._activate()
        if not self.is_active:
            return
        for run, asked_at_ms in list(self._confirmed_at_ms.items()):
            if now_ms - asked_at_ms >= CONFIRMED_MS:
                del self._confirmed_at_ms[run]
        for run in list(self.store.holders()):
            if run in self._settling:
                continue
            if run == UNKNOWN_RUN or (is_dead(run) and run not in self._confirmed_at_ms):
                self._settle(run, now_ms, is_spent)
            else:
                self._late.pop(run, None)
        due = [key for key in self.store.due(now_ms, DUE_AT_ONCE) if key not in self._busy]
        if due:
            self.start_for(due, acts.process_due(self, due, now_ms))
        for key, asked_at_ms in list(self._asked_at_ms.items()):
            if not asked_at_ms:
                self._asked_at_ms[key] = now_ms
            elif now_ms - asked_at_ms >= ASK_AGAIN_MS:
                del self._asked_at_ms[key]
                self.serve(key)
        self.subscriptions.tick()
        self.groups.tick(now_ms, is_dead)

    def _settle(self, run: Run, now_ms: int, is_spent: Callable[[Run], bool]) -> None:
        """Take from a dead run what it held; last, what it may still be storing messages for."""
        late: set[Key] = set()
        if run != UNKNOWN_RUN and not is_spent(run):
            if run in self._late:
                return
            late = {key for key in self.store.held_by(run) if self._is_storing(key)}
        self._late[run] = late
        self._settling.add(run)
        self._act(acts.settle(self, run, now_ms, late))

    def _is_storing(self, key: Key) -> bool:
        progress = self.store.progress(key)
        return progress is not None and is_storing(progress)

    def end_stored(self, key: Key, now_ms: int) -> bool:
        """End the session of an absent client; False: there is none, or it is not absent."""
        entry = self.store.get(key)
        if (
            not self.is_active
            or entry is None
            or entry.session is None
            or entry.holder is not None
            or key in self._busy
        ):
            return False
        self.start_for([key], acts.end(self, [key], now_ms, is_expired=False))
        return True

    def act(self, work: Work) -> None:
        """Act for share groups of the shard, or its subscriptions."""
        self._act(work)

    def _act(self, work: Work) -> None:
        self._acting += 1
        self._start(self, self._counted(work))

    async def _counted(self, work: Work) -> None:
        try:
            await work
        finally:
            self._acting -= 1
            self._rest()

    def start_for(self, keys: Sequence[Key], work: Work, *, served: int | None = None) -> None:
        """Act for clients; nothing else is done for them meanwhile.

        Args:
            keys: Whose.
            work: What.
            served: Epoch of the claim that it serves.
        """
        self._busy.update(keys)
        self._act(self._alone(keys, work, self.owner_epoch, served))

    async def _alone(
        self, keys: Sequence[Key], work: Work, owner_epoch: int, served: int | None
    ) -> None:
        try:
            await work
        finally:
            if self.owner_epoch == owner_epoch:
                self._busy.difference_update(keys)
        if self.owner_epoch == owner_epoch:
            for key in keys:
                entry = self.store.get(key)
                if entry is None:
                    continue
                if entry.claim is not None or (
                    entry.granted is not None and entry.granted.epoch != served
                ):
                    self.serve(key)

    def forget(self, key: Key) -> None:
        """Let go of the fence of a session that has ended long ago."""
        entry = self.store.get(key)
        if entry is not None and entry.session is None and entry.holder is None:
            self.store.delete(key)

    def settled(self, run: Run) -> None:
        """Note that nothing more is done for a dead run, but for those that are late."""
        self._settling.discard(run)
        if not self._late.get(run):
            self._late.pop(run, None)


def session_of(entry: Entry) -> SessionRecord | None:
    """Return the session of an entry; when its holder let go, and what is due since, by the log.

    It was read in outline. One that turns out not to be a session is as none: nobody can serve it.
    """
    if entry.session is None:
        return None
    try:
        session = decode_session(entry.session)
    except InvalidRecord:
        return None
    if entry.closed_at_ms is not None:
        session.disconnected_at_ms = entry.closed_at_ms
        if session.will is not None:
            session.will_at_ms = entry.closed_at_ms + session.will.will_delay_interval * 1000
    return session


def _closed_at_ms(session: SessionOutline | None, stamp: Stamp, record: LogRecord) -> int | None:
    """Return when the holder let go: by the log, for clocks of gateways may be wrong."""
    if session is None:
        return None
    return record.timestamp_ms if stamp.owner is None else session.disconnected_at_ms


def _is_due(entry: Entry) -> bool:
    """Tell whether something is due at the moment when the holder lets go."""
    return (
        entry.closed_at_ms is not None
        and entry.due_at_ms is not None
        and entry.due_at_ms <= entry.closed_at_ms
    )


async def _append(*records: ShardRecord) -> None:
    await Append(records)


def _is_same(before: Claim | None, claim: Claim) -> bool:
    return before is not None and (before.run, before.number) == (claim.run, claim.number)


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as exc:
        raise InvalidRecord(f"sessions key {key!r} is not UTF-8") from exc


_KINDS: Final[dict[str, Callable[[Shard, Key, Stamp, Any], None]]] = {
    SESSION: Shard._apply_session,
    PROGRESS: Shard._apply_progress,
    CLAIM: Shard._apply_claim,
}
