"""The sessions of a shard: which of their records count, and their holders.

For each client:

                        claim                                 release, or the owner
                  ┌───────────────► held ◄──────────────┐     settles a dead holder
    no one ───────┘                  │ ▲                │              │
      ▲                        claim │ │ own records    └── the claim that waits ──┐
      │                              ▼ │                                           │
      └────────── no one waits ◄── held, another waits ────────────────────────────┘

- A claim that finds no holder holds the session from its own offset on: that is the *epoch*.
- One of another principal than the session's is void: it is refused, and the session's holder knows
  nothing of it. A session's principal is that of the claim by which it is held, else of its record.
- One that finds a holder waits until that has let go; a later one replaces it.
- Of a held session records count that say its epoch. Once it was let go of, or settled by the
  owner, no record of that epoch counts: a gateway that was paused cannot write over later
  records.
- Records that the owner of the shard has written say the owner's epoch, the offset of its record
  `o/owner`; those of an earlier owner do not count behind a later one's.

A record that does not count may be the last under its key, and compaction would leave nothing else:
then the owner writes the one that counts once more, or has the holder do it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from ingest.session.shard import acts
from ingest.session.shard.effects import AppendRecords, ShardRecord
from ingest.session.shard.entries import UNKNOWN_RUN, ShardEntry
from mqlake.errors import InvalidRecord
from mqlake.records.progress import check_progress
from mqlake.records.sessions import PROGRESS, SESSION, progress_key, read_outline, session_key
from mqlake.records.shards import (
    CLAIM,
    NO_EPOCH,
    Run,
    claim_key,
    decode_claim,
    encode_claim,
    stamp_headers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.shard.effects import Work
    from ingest.session.shard.entries import ShardStore
    from ingest.session.shard.late_writers import LateWriters
    from ingest.session.shard.stored_subscriptions import SubscriptionsOfShard
    from mqlake.records.messages import LogRecord
    from mqlake.records.sessions import SessionOutline
    from mqlake.records.shards import Claim, Key, Stamp

FENCE_MS: Final = 60 * 60 * 1000
"""How long the epoch of a session that has ended is remembered: longer than a gateway is paused."""


class ShardOfSessions(Protocol):
    """Implemented by `ingest.session.ownership.Shard`, which describes it."""

    me: Run
    owner_epoch: int
    is_active: bool

    @property
    def store(self) -> ShardStore: ...
    @property
    def subscriptions(self) -> SubscriptionsOfShard[ShardEntry]: ...
    @property
    def late(self) -> LateWriters: ...
    def act(self, work: Work) -> None: ...
    def is_busy(self, key: Key) -> bool: ...
    def serve(self, key: Key) -> None: ...
    def serve_anew(self, key: Key) -> None: ...
    def claim_read(self, key: Key, claim: Claim, *, is_held: bool) -> None: ...
    def is_due(self, key: Key, now_ms: int) -> None: ...


class SessionsOfShard:
    """The part of a shard that is about its sessions.

    Args:
        shard: Gets the acts that follow for its owner.
    """

    def __init__(self, shard: ShardOfSessions) -> None:
        self._shard = shard
        self._store = shard.store
        # Keys of records under which the last one does not count, and the epoch of that.
        self._shadowed: dict[tuple[str, Key], int] = {}
        # Of these, clients for whom the owner acts: its own records may be on their way.
        self._deferred: set[tuple[str, Key]] = set()

    # Records read

    def apply(self, kind: str, key: Key, stamp: Stamp, record: LogRecord) -> bool:
        """Take a record in the order of the shard; False: it is of another kind.

        Raises:
            InvalidRecord: It cannot be read; the value before it stays.
        """
        apply = _KINDS.get(kind)
        if apply is None:
            return False
        apply(self, key, stamp, record)
        return True

    def begin(self) -> None:
        """Write again records that do not count as they stand: this gateway acts from now on."""
        self._deferred.clear()
        for kind, key in list(self._shadowed):
            self._write_again(kind, key)

    def _apply_claim(self, key: Key, stamp: Stamp, record: LogRecord) -> None:
        shard = self._shard
        entry = self._store.get(key)
        self._shadowed.pop((CLAIM, key), None)
        if record.value is None:
            if entry is not None:
                self._end_claim(key, entry, stamp, record.timestamp_ms)
            return
        # One that is repeated, or written again by the owner, says where it stood first.
        epoch = record.offset if stamp.epoch == NO_EPOCH else stamp.epoch
        claim = decode_claim(record.value, epoch, record.timestamp_ms)
        shard.late.seen(claim.run)
        shard.claim_read(key, claim, is_held=entry is not None and entry.holder is not None)
        if entry is None:
            self._grant(key, ShardEntry(is_proven=False), claim)
        elif _is_same(entry.granted, claim) or _is_same(entry.claim, claim):
            if stamp.owner is None:  # the answer to its gateway may be lost
                shard.serve_anew(key)
        elif epoch <= entry.epoch or (entry.claim is not None and epoch < entry.claim.epoch):
            is_held = epoch == entry.epoch and entry.holder == claim.run
            if shard.is_active and stamp.owner is None and not is_held:
                shard.act(acts.refuse(key, claim))  # it is over, and its gateway does not know
            # Or it was written again while its end was on its way.
            if entry.claim is not None or (stamp.owner is not None and not is_held):
                self._shadow(CLAIM, key, entry, epoch)
        elif not claim.may_have(_principal_of(entry)):
            self._void(key, entry, claim)
        elif entry.holder is None:
            self._grant(key, entry, claim)
        elif claim.goes_on:  # another has come since, and its gateway lets go of it
            if entry.claim is not None:
                self._shadow(CLAIM, key, entry, epoch)
        else:
            before, entry.claim = entry.claim, claim
            self._store.put(key, entry)
            if before is not None and shard.is_active:
                shard.act(acts.refuse(key, before))
            shard.serve_anew(key)

    def _end_claim(self, key: Key, entry: ShardEntry, stamp: Stamp, now_ms: int) -> None:
        """Take the end of a claim: its session is written, was never written, or is not wanted."""
        epoch = stamp.epoch
        if entry.claim is not None and entry.claim.epoch == epoch:
            entry.claim = None
            self._store.put(key, entry)
        elif entry.granted is not None and entry.granted.epoch == epoch:
            if stamp.owner is not None:
                # Its gateway was dead, or paused, and may write under this epoch yet.
                entry.due_at_ms = now_ms + FENCE_MS
                entry.is_proven = True  # an owner settles granted claims, not waiting ones
            self._let_go(key, entry)
        elif entry.claim is not None or entry.granted is not None:
            self._shadow(CLAIM, key, entry, epoch)

    def _void(self, key: Key, entry: ShardEntry, claim: Claim) -> None:
        """Leave out a claim of another principal; its gateway hears of it."""
        self._shadow(CLAIM, key, entry, claim.epoch)
        if self._shard.is_active:
            self._shard.act(acts.refuse(key, claim, is_anothers=True))

    def _void_claims(
        self, key: Key, entry: ShardEntry, stamp: Stamp, session: SessionOutline
    ) -> None:
        """Leave out claims from when compaction had removed the session's principal."""
        claim, granted = entry.claim, entry.granted
        if claim is not None and not claim.may_have(session.principal):
            entry.claim = None
            self._void(key, entry, claim)
        if (
            granted is not None
            and granted.epoch > stamp.epoch
            and not granted.may_have(session.principal)
        ):
            entry.granted = entry.holder = None
            entry.epoch = stamp.epoch
            self._void(key, entry, granted)

    def _apply_session(self, key: Key, stamp: Stamp, record: LogRecord) -> None:
        entry = self._store.get(key) or ShardEntry()
        if not self.counts(entry, stamp):
            self._shadow(SESSION, key, entry, stamp.epoch)
            self._shard.late.wrote(key, stamp, record.timestamp_ms)
            return
        session = None if record.value is None else read_outline(record.value)
        if session is not None and session[:2] != key:
            raise InvalidRecord(f"session under key {record.key!r} is that of another client")
        if session is not None:
            self._shard.late.seen(Run(session.gateway, session.incarnation))
        if self._shadowed:
            self._shadowed.pop((SESSION, key), None)
        self._shard.subscriptions.session_written(key, entry.session, session)
        entry.session, entry.session_epoch = record.value, stamp.epoch
        if session is not None and (entry.claim is not None or entry.granted is not None):
            self._void_claims(key, entry, stamp, session)
        if session is None:
            self._store.put_progress(key, None)
            entry.due_at_ms = record.timestamp_ms + FENCE_MS
        is_held = session is not None and session.connected
        if stamp.epoch < entry.epoch and entry.holder is not None and not is_held:
            # Of the holder before: a claim has the session already, and with it the stored one.
            entry.closed_at_ms = _closed_at_ms(session, stamp, record)
            self._store.put(key, entry)
            return
        if session is not None and is_held:
            run = Run(session.gateway, session.incarnation)
            granted, entry.granted = entry.granted, None
            if stamp.epoch < entry.epoch and granted is not None and granted.run != run:
                entry.claim = granted  # compaction had removed the record of its holder
            elif entry.claim is not None and entry.claim.epoch <= stamp.epoch:
                entry.claim = None  # it does not wait: compaction had removed the release before it
            entry.epoch, entry.holder = stamp.epoch, run
            entry.is_proven = True
            entry.closed_at_ms = entry.due_at_ms = None
            self._store.put(key, entry)
            return
        entry.epoch = max(entry.epoch, stamp.epoch)
        entry.is_proven = True
        entry.closed_at_ms = _closed_at_ms(session, stamp, record)
        self._let_go(key, entry, session)

    def _apply_progress(self, key: Key, stamp: Stamp, record: LogRecord) -> None:
        value = record.value
        if value is not None:
            check_progress(value)
            if stamp.owner is None and self._store.advance(key, stamp.epoch, value):
                return
        entry = self._store.get(key)
        if value is None and (entry is None or entry.session is None):
            return  # with its session
        if entry is not None and not self.counts(entry, stamp):
            self._shadow(PROGRESS, key, entry, stamp.epoch)
            self._shard.late.wrote(key, stamp, record.timestamp_ms)
            return
        if self._shadowed:
            self._shadowed.pop((PROGRESS, key), None)
        self.learn_epoch(key, entry, stamp.epoch)
        self._store.put_progress(key, value)

    def learn_epoch(self, key: Key, entry: ShardEntry | None, epoch: int) -> None:
        """Note the epoch of a record that counts, beside the session."""
        if entry is None:
            self._store.put(key, ShardEntry(epoch, UNKNOWN_RUN))
        elif epoch > entry.epoch:
            entry.epoch = epoch
            entry.holder = entry.holder or UNKNOWN_RUN
            self._store.put(key, entry)

    def counts(self, entry: ShardEntry, stamp: Stamp) -> bool:
        """Tell whether a record of a session, or of a part of it, is from its rightful writer."""
        is_before = stamp.epoch < entry.epoch
        if stamp.owner is not None:
            # An owner's record of a session is too late behind that of a later holder.
            return stamp.owner >= self._shard.owner_epoch and stamp.epoch >= entry.session_epoch
        if is_before:
            return not entry.is_proven
        if stamp.epoch > entry.epoch or stamp.epoch == NO_EPOCH:
            return True
        return entry.holder is not None

    # Holders of sessions

    def _grant(self, key: Key, entry: ShardEntry, claim: Claim) -> None:
        entry.epoch = claim.epoch
        entry.holder = claim.run
        entry.granted = claim
        entry.claim = None
        self._store.put(key, entry)
        self._shard.serve(key)

    def _let_go(self, key: Key, entry: ShardEntry, session: SessionOutline | None = None) -> None:
        """Note that a session has no holder any more; the claim that waits gets it."""
        claim = entry.claim
        entry.holder = entry.granted = entry.claim = None
        if entry.session is not None:
            session = session or read_outline(entry.session)
            entry.due_at_ms = session.due_at_ms(entry.closed_at_ms)
        if claim is not None:
            self._grant(key, entry, claim)
        elif entry.session is None and entry.due_at_ms is None:
            self._store.delete(key)
        else:
            self._store.put(key, entry)
            if _is_due(entry):
                assert entry.closed_at_ms is not None
                self._shard.is_due(key, entry.closed_at_ms)

    # Records that do not count

    def _shadow(self, kind: str, key: Key, entry: ShardEntry, epoch: int) -> None:
        """Note that the last record under a key does not count, and its epoch."""
        self._shadowed[kind, key] = epoch
        if not self._shard.is_active:
            return
        if kind != CLAIM and self._shard.is_busy(key):
            self._deferred.add((kind, key))  # what is known now would undo what the act writes
            return
        self._write_again(kind, key, entry)

    def act_over(self, key: Key) -> None:
        """Write again what waited for an act, unless the act has written it."""
        for kind in (SESSION, PROGRESS):
            if (kind, key) in self._deferred:
                self._deferred.discard((kind, key))
                if (kind, key) in self._shadowed:
                    self._write_again(kind, key)

    def _write_again(self, kind: str, key: Key, entry: ShardEntry | None = None) -> None:
        entry = entry or self._store.get(key) or ShardEntry()
        if kind != CLAIM and entry.holder is not None and entry.granted is None:
            # Only its holder knows the newest; ours would be older when it stands in the log.
            run = entry.holder
            self._shard.act(acts.ask(run.gateway, acts.REWRITE, key, entry.epoch))
            self._shadowed.pop((kind, key), None)
            return
        record_key, value = progress_key(*key), self._store.progress(key)
        if kind == SESSION:
            record_key, value = session_key(*key), entry.session
        elif kind == CLAIM:
            claim = entry.claim or entry.granted
            record_key, value = claim_key(*key), None
            epoch = self._shadowed[kind, key]
            if claim is not None:
                epoch = claim.epoch
                value = encode_claim(
                    claim.run,
                    claim.number,
                    clean_start=claim.clean_start,
                    goes_on=claim.goes_on,
                    principal=claim.principal,
                    session=claim.session,
                )
            self._shard.act(_append(ShardRecord(record_key, value, self._stamp(epoch))))
            return
        self._shard.act(_append(ShardRecord(record_key, value, self._stamp(entry.session_epoch))))

    def _stamp(self, epoch: int) -> list[tuple[str, bytes]]:
        return stamp_headers(self._shard.me.incarnation, epoch, self._shard.owner_epoch)


def _principal_of(entry: ShardEntry) -> str | None:
    """Return the principal of a session; None: it has none, or it is unknown."""
    if entry.granted is not None:
        return entry.granted.principal
    return None if entry.session is None else read_outline(entry.session).principal


def _closed_at_ms(session: SessionOutline | None, stamp: Stamp, record: LogRecord) -> int | None:
    """Return when the holder let go: by the log, for clocks of gateways may be wrong."""
    if session is None:
        return None
    return record.timestamp_ms if stamp.owner is None else session.disconnected_at_ms


def _is_due(entry: ShardEntry) -> bool:
    """Tell whether something is due at the moment when the holder lets go."""
    return (
        entry.closed_at_ms is not None
        and entry.due_at_ms is not None
        and entry.due_at_ms <= entry.closed_at_ms
    )


async def _append(*records: ShardRecord) -> None:
    await AppendRecords(records)


def _is_same(before: Claim | None, claim: Claim) -> bool:
    return before is not None and (before.run, before.number) == (claim.run, claim.number)


_KINDS: Final[dict[str, Callable[[SessionsOfShard, Key, Stamp, Any], None]]] = {
    SESSION: SessionsOfShard._apply_session,
    PROGRESS: SessionsOfShard._apply_progress,
    CLAIM: SessionsOfShard._apply_claim,
}
