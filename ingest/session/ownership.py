"""One shard of `mqlake.sessions`: its records, and the acts of its owner.

Every reader of a shard applies its records in their order and comes to the same state, nothing is
decided anywhere else: for sessions that is `stored_sessions.py`.

One owner acts at a time, or a will that one is about to publish would be published by the next,
which does not find it yet. So a new owner acts when those before it have left, a record behind
their last act, or are silent; and an owner does acts that cannot be undone, publish a will or begin
a session that no record tells of, only while it is certain to be heard (`PublishWills`).

The owner acts in coroutines (`ingest.session.shard.effects`). Its answers may be lost with it: a
gateway whose claim is not answered repeats it, and a new owner looks at every claim that waits. So
each act may be done twice, and none needs to be remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingest.session.groups.share_groups import GroupsOfShard
from ingest.session.shard import acts
from ingest.session.shard.dead_holders import DeadHolders
from ingest.session.shard.effects import AppendRecords, ShardRecord
from ingest.session.shard.entries import session_of
from ingest.session.shard.late_writers import LateWriters
from ingest.session.shard.stored_sessions import SessionsOfShard
from ingest.session.shard.stored_subscriptions import SubscriptionsOfShard
from ingest.session.shard.taken_sessions import TakenSession, TakenSessions
from mqlake.errors import InvalidRecord
from mqlake.records.messages import SKIPPED_KEY
from mqlake.records.progress import decode_marks
from mqlake.records.sessions import MARKS, SUBSCRIPTION
from mqlake.records.shards import (
    LEFT,
    MEMBER,
    MEMBERSHIP,
    NO_EPOCH,
    OWNER_KEY,
    QUESTION,
    decode_run,
    encode_run,
    left_key,
    read_stamp,
    stamp_headers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest.session.shard.effects import Work
    from ingest.session.shard.entries import ShardEntry, ShardStore
    from mqlake.records.messages import LogRecord
    from mqlake.records.progress import MarksRecord
    from mqlake.records.sessions import SessionRecord
    from mqlake.records.shards import Claim, Key, Run, Stamp

ASK_AGAIN_MS: Final = 2_000
"""How often a holder is asked again to let go."""

DUE_AT_ONCE: Final = 500


class Shard:
    """A shard as a gateway reads it, owned or stood by for.

    Args:
        number: Its partition.
        store: Empty.
        me: This run of this gateway.
        start: Takes the coroutines in which the owner acts.

    Attributes:
        owner: The run that owns it; None before the first record of an owner was read.
        owner_epoch: Since which offset.
        is_active: Whether this gateway owns it, and those before it act no more.
        next_offset: The first offset that was not read.
        has_to_leave: It was this gateway's, and others do not know that it acts no more.
        groups: The share groups whose records are in it.
        sessions: Stored ones, and their holders.
        taken: Those that were begun without a claim.
        subscriptions: Those that have records of their own.
        late: Gateways that write of sessions which are not theirs any more.
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
        # Clients for which a coroutine acts.
        self._busy: set[Key] = set()
        # How many coroutines act.
        self._acting = 0
        # Owners before this one that may not know it yet.
        self._before: set[Run] = set()
        self.has_to_leave = False
        self._is_leaving = False
        self.taken = TakenSessions()
        self._asked_at_ms: dict[Key, int] = {}
        self.late = LateWriters(self)
        self.groups = GroupsOfShard(self)
        self.subscriptions: SubscriptionsOfShard[ShardEntry] = SubscriptionsOfShard(self)
        self.sessions = SessionsOfShard(self)
        self._dead = DeadHolders(self)

    # Records read

    def apply(self, record: LogRecord) -> None:
        """Take a record in the order of the shard.

        Raises:
            InvalidRecord: It cannot be read; the value before it stays.
        """
        self.next_offset = record.offset + 1
        key = record.key or b""
        if key == SKIPPED_KEY:
            return
        stamp = read_stamp(record.headers)
        kind, _, rest = _text(key).partition("/")
        tenant, _, client_id = rest.partition("/")
        if tenant and client_id and self.sessions.apply(kind, (tenant, client_id), stamp, record):
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
        if kind in {MEMBERSHIP, MEMBER}:
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
        """Tell whether sessions were begun for which no other owner of the shard answers."""
        return bool(self.taken.begun)

    def take(self, key: Key, number: int, principal: str | None) -> bool:
        """Take a session that is stored or new, without a claim; False: claim it.

        A claimant is given it when it is let go of (`untake`). Only for an owner that is certain to
        be heard, as `PublishWills`.

        Args:
            key: Key of the client.
            number: Number of the claim that follows if the shard changes its owner.
            principal: Principal of that claim.
        """
        if not self.is_active or key in self.taken.begun or self.store.get(key) is not None:
            return False
        self.taken.begun[key] = TakenSession(number, principal)
        return True

    def untake(self, key: Key) -> None:
        """Note that a session is over that was taken, or not free any more."""
        if self.taken.begun.pop(key, None) is not None:
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
        self._dead.clear()
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
        """Claim taken sessions, and say that this gateway acts no more."""
        stamp = stamp_headers(self.me.incarnation)
        try:
            await AppendRecords(self.taken.claims(self.me))
            await AppendRecords(
                [ShardRecord(left_key(self.me.gateway), encode_run(self.me), stamp)]
            )
            self.has_to_leave = False
        finally:
            self._is_leaving = False

    def _activate(self) -> None:
        if self.is_active or self.owner != self.me or self._before or self._acting:
            return
        self.is_active = True
        self.has_to_leave = False
        self.sessions.begin()
        self.subscriptions.begin()
        for key in (*self.store.waiting(), *self.taken.going_on):
            self.serve(key)
        self.taken.going_on.clear()
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
            keys = self._dead.asked(run, record.timestamp_ms)
            if run == self.me:
                keys += self.taken.begun
            earlier = (self._dead.count_earlier(run), self.groups.count_earlier(run))
            self.act(acts.confirm(self.number, run, number, keys, earlier))

    def counts(self, entry: ShardEntry, stamp: Stamp) -> bool:
        """Tell whether a record of a session, or of a part of it, is from its rightful writer."""
        return self.sessions.counts(entry, stamp)

    def learn_epoch(self, key: Key, entry: ShardEntry | None, epoch: int) -> None:
        """Note the epoch of a record that counts, beside the session."""
        self.sessions.learn_epoch(key, entry, epoch)

    def claim_read(self, key: Key, claim: Claim, *, is_held: bool) -> None:
        """Note a claim before it is judged."""
        if claim.goes_on and not self.is_active:
            self.taken.going_on.add(key)
        self.taken.claim_read(key, claim, self.me, self.owner, is_held=is_held)

    def is_busy(self, key: Key) -> bool:
        """Tell whether the owner acts for a client."""
        return key in self._busy

    def is_due(self, key: Key, now_ms: int) -> None:
        """Act on will or expiry that is due at the moment when the holder of a session lets go."""
        if self.is_active and key not in self._busy:
            self.start_for([key], acts.process_due(self, [key], now_ms))

    # Acts of the owner

    def serve_anew(self, key: Key) -> None:
        """Serve a claim that is new, or was repeated: its holder is asked at once."""
        self._asked_at_ms.pop(key, None)
        self.serve(key)

    def serve(self, key: Key) -> None:
        """Serve the claims of a client: give the session, or ask its holder for it."""
        if not self.is_active or key in self._busy:
            return
        entry = self.store.get(key)
        if entry is None or entry.holder is None:
            return
        claim, taken = entry.granted, self.taken.begun.get(key)
        if taken is not None and claim is not None and claim.goes_on:
            if claim.run != self.me:
                self.act(acts.refuse(key, claim))
                return
            del self.taken.begun[key]  # the shard is this gateway's again
            taken = None
        newest = entry.claim or claim
        if taken is not None and newest is not None and not newest.may_have(taken.principal):
            # Only this gateway knows that it is another's.
            self.start_for([key], acts.end_claim(self, key, newest), served=newest.epoch)
        elif taken is not None:
            self.taken.free.let_go(key)  # and then it is served
        elif entry.claim is not None:
            self._asked_at_ms.setdefault(key, 0)
            self.act(acts.ask(entry.holder.gateway, acts.RELEASE, key, entry.epoch))
        elif claim is not None:
            self.start_for([key], acts.hand_over(self, key, claim), served=claim.epoch)

    def tick(
        self,
        now_ms: int,
        is_dead: Callable[[Run], bool],
        is_silent: Callable[[Run], bool],
        is_spent: Callable[[Run], bool],
    ) -> None:
        """Act on deadlines: settle dead holders, wills and expiries, ask again.

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
        self._dead.tick(now_ms, is_dead, is_spent)
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
        """Begin to act; until that is over, no later owner does."""
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
            keys: Keys of the clients.
            work: The act.
            served: Epoch of the claim that it serves.
        """
        self._busy.update(keys)
        self.act(self._alone(keys, work, self.owner_epoch, served))

    async def _alone(
        self, keys: Sequence[Key], work: Work, owner_epoch: int, served: int | None
    ) -> None:
        try:
            await work
        finally:
            if self.owner_epoch == owner_epoch:
                self._busy.difference_update(keys)
                for key in keys:
                    self.sessions.act_over(key)
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


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as exc:
        raise InvalidRecord(f"sessions key {key!r} is not UTF-8") from exc
