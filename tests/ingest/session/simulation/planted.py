"""Faults to be planted in the code under test, each of which the simulation has to find."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from ingest.gateway.sending.progress import SessionProgress
from ingest.gateway.store import shards
from ingest.session import ownership
from ingest.session.client import fallen_behind
from ingest.session.client.catch_up import Missed
from ingest.session.client.incoming import Arrival, IncomingMessages
from ingest.session.client.maybe_sent import MaybeSent
from ingest.session.client.outgoing import Exchange, OutgoingMessages
from ingest.session.holder import Holder
from ingest.session.opening import (
    CatchUp,
    ClaimSession,
    GoLive,
    Hold,
    LoadSession,
    RouteFilters,
    Save,
    Welcome,
)
from ingest.session.ownership import Shard
from ingest.session.shard import acts, stored_sessions
from ingest.session.shard.effects import AppendRecords, PublishWills, Tell
from ingest.session.shard.entries import UNKNOWN_RUN, ShardEntry
from ingest.session.shard.stored_sessions import SessionsOfShard
from ingest.session.shard.taken_sessions import TakenSession
from mqlake.clock import LogClock, Standstill
from mqlake.records.progress import MarksRecord, decode_marks
from mqlake.records.sessions import SessionOutline, will_exchange
from mqlake.records.shards import ANYBODY, Claim
from tests.ingest.session.simulation import opening, serving
from tests.ingest.session.simulation.clients import TENANT
from tests.ingest.session.simulation.families import (
    change_owners,
    crash_at_each_event,
    fall_behind_and_crash,
    keep_on_disk,
    lose_the_answer,
    move_while_messages_come,
    outlast_a_stranger,
    strangers_come,
    take_over_twice,
    wait_while_cut_off,
)
from tests.ingest.session.simulation.gateway import Process
from tests.ingest.session.simulation.lease import SILENCE_MS, LeasedNode
from tests.ingest.session.simulation.opening import Opening
from tests.ingest.session.simulation.receiving import Receiving
from tests.ingest.session.simulation.schedule import CLIENTS
from tests.ingest.session.simulation.sending import Sending
from tests.ingest.session.simulation.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from mqlake.records.shards import Key, Run, Stamp
    from tests.ingest.session.simulation.invariants import Violation

    Family = Callable[[], Iterator[Violation | None]]

Patch = pytest.MonkeyPatch


def ignore_epochs(patch: Patch) -> None:
    """Records of a session count whatever their epoch."""
    patch.setattr(SessionsOfShard, "counts", lambda *_: True)


def settle_without_closing(patch: Patch) -> None:
    """Sessions of a dead run stay connected."""
    settled = acts._settled

    def settle(*args: Any) -> Any:
        return [
            replace(one, value=one.value.replace(b'"connected":false', b'"connected":true'))
            if one.value
            else one
            for one in settled(*args)
        ]

    patch.setattr(acts, "_settled", settle)


def settle_without_looking(patch: Patch) -> None:
    """What was on its way into the log when its gateway died is taken for lost."""

    async def settle(shard: Shard, run: Run, now_ms: int, late: Collection[Key]) -> None:
        keys = [key for key in shard.store.held_by(run) if key not in late]
        records: list[Any] = []
        for key in keys:
            entry = shard.store.get(key)
            assert entry is not None
            progress = acts._progress(shard, key, entry)
            records += acts._settled(shard, run, key, entry, progress, set(), [], now_ms)
        await AppendRecords(records)

    patch.setattr(acts, "settle", settle)


def grant_at_once(patch: Patch) -> None:
    """A claim is granted though another gateway holds the session."""

    def serve(self: Shard, key: Key) -> None:
        entry = self.store.get(key)
        claim = None if entry is None else entry.claim or entry.granted
        if self.is_active and key not in self._busy and entry is not None and claim is not None:
            entry.granted, entry.claim = claim, None
            self.store.put(key, entry)
            self.start_for([key], acts.hand_over(self, key, claim), served=claim.epoch)

    patch.setattr(Shard, "serve", serve)


def clear_wills_before(patch: Patch) -> None:
    """A will is taken out of its session before it is published."""

    async def publish(shard: Shard, keys: Sequence[Key]) -> None:
        sessions = [(key, shard.session(key)) for key in keys]
        records = []
        for key, session in sessions:
            if session is not None:
                cleared = replace(session, will=None, will_at_ms=None, will_from=None)
                records.append(acts._session_record(shard, key, cleared))
        await AppendRecords(records)
        wills = [(one, will_exchange(one)) for _, one in sessions if one is not None]
        await PublishWills(wills)

    patch.setattr(acts, "_publish_due_wills", publish)


def announce_no_wills(patch: Patch) -> None:
    """A will is published without a word in the log that it will be."""

    async def publish(shard: Shard, keys: Sequence[Key]) -> None:
        sessions = [one for key in keys if (one := shard.session(key)) is not None and one.will]
        await PublishWills([(one, will_exchange(one)) for one in sessions])

    patch.setattr(acts, "_publish_wills", publish)


def publish_wills_without_looking(patch: Patch) -> None:
    """A will that was begun is published again."""
    patch.setattr(acts, "Find", lambda _: _nothing_found())


async def _nothing_found() -> set[bytes]:
    return set()


def ignore_releases(patch: Patch) -> None:
    """A holder does not let go."""
    patch.setattr(Holder, "asked_to_let_go", lambda *_: None)


def skip_confirming(patch: Patch) -> None:
    """A gateway that was cut off goes on as if nothing had happened."""
    patch.setattr(Holder, "confirm", lambda self, _: self._host.confirmed())


def skip_the_lease(patch: Patch) -> None:
    """A gateway does not notice that its lease is over."""

    def may_act(self: Process) -> bool:
        self.is_isolated = False
        return True

    patch.setattr(Process, "may_act", may_act)


def resurrect_sessions(patch: Patch) -> None:
    """A late record of a session that has ended counts."""
    counts = SessionsOfShard.counts

    def count(self: SessionsOfShard, entry: ShardEntry, stamp: Stamp) -> bool:
        return (entry.session is None and stamp.owner is None) or counts(self, entry, stamp)

    patch.setattr(SessionsOfShard, "counts", count)


def use_marks_of_another_run(patch: Patch) -> None:
    """Marks of whatever run of a gateway move the cursors of its sessions."""

    def marks_of(self: Shard, run: Run) -> MarksRecord | None:
        found = [decode_marks(value) for value in self._marks.values()]
        if not found:
            return None
        marks = max(found, key=lambda one: one.marks)
        return replace(marks, incarnation=run.incarnation)

    patch.setattr(Shard, "marks_of", marks_of)


def save_steps_later(patch: Patch) -> None:
    """A packet of a QoS 2 exchange leaves before the step that it depends on is saved."""

    def go_on(self: SessionProgress, proceed: Callable[[], None]) -> None:
        proceed()
        self.touch()

    patch.setattr(SessionProgress, "after_saved", go_on)


def forget_that_there_was_a_session(patch: Patch) -> None:
    """Session Present is taken from whether the client wanted nothing, not from what is stored."""
    welcome = Opening.welcome

    def say(self: Opening, _: Welcome) -> Any:
        return welcome(self, Welcome(not self.connection.options.clean))

    patch.setitem(opening.PERFORM, Welcome, say)


def settle_the_living(patch: Patch) -> None:
    """A gateway is dead for the others as soon as it is silent."""

    def is_dead(self: Process, run: Run) -> bool:
        return run != self.me and self.is_silent_for(run, SILENCE_MS)

    patch.setattr(Process, "is_dead", is_dead)


def give_what_was_taken(patch: Patch) -> None:
    """The owner hands a session over that it has begun itself."""

    def take(self: Shard, key: Key, _number: int, _principal: str | None) -> bool:
        return self.is_active and self.store.get(key) is None

    patch.setattr(Shard, "take", take)


def leave_what_was_taken(patch: Patch) -> None:
    """An owner leaves without a claim for the sessions that it has begun without one."""
    leave = Shard._leave

    async def leave_them(self: Shard) -> None:
        self.taken.begun.clear()
        await leave(self)

    patch.setattr(Shard, "_leave", leave_them)


def deliver_unsure(patch: Patch) -> None:
    """A gateway that was silent goes on to serve what it has begun without a claim."""
    may_deliver = Process.may_deliver

    def may_always(self: Process) -> bool:
        may_deliver(self)
        return self.may_act()

    patch.setattr(Process, "may_deliver", may_always)


def hand_over_twice(patch: Patch) -> None:
    """A claim that is repeated ends the session that its gateway has just begun."""
    hand_over = acts.hand_over

    async def again(shard: Shard, key: Key, claim: Claim) -> None:
        entry = shard.store.get(key)
        if entry is not None and entry.granted is None and claim.clean_start:
            await acts.end(shard, [key], claim.at_ms, is_expired=False)
        await hand_over(shard, key, claim)

    patch.setattr(acts, "hand_over", again)


def judge_by_the_claim(patch: Patch) -> None:
    """What is due is judged by when a claim came, not by when the connection before ended."""
    patch.setattr(acts, "max", lambda claimed_at, _: claimed_at, raising=False)


def judge_the_lease_by_ticks(patch: Patch) -> None:
    """A gateway knows of the end of its lease when its clock ticks, not when it acts."""
    may_act, tick = LeasedNode.may_act, LeasedNode.tick

    def look(self: LeasedNode) -> None:
        if self.world.now >= self.stopped_until:
            may_act(self)
        tick(self)

    patch.setattr(LeasedNode, "may_act", lambda self: not self.is_isolated)
    patch.setattr(LeasedNode, "tick", look)


def own_by_word(patch: Patch) -> None:
    """A gateway tells every claimant that it holds whatever it asks about."""

    async def confirm(shard: int, run: Run, number: int, keys: Sequence[Key]) -> None:
        every = [(TENANT, f"c{n}") for n in range(CLIENTS)]
        value = json.dumps(
            {
                "incarnation": run.incarnation,
                "number": number,
                "shard": shard,
                "keys": every,
                "is_last": True,
            }
        )
        del keys
        await Tell(run.gateway, acts.CONFIRM, value.encode())

    patch.setattr(acts, "confirm", confirm)


def welcome_before_it_is_saved(patch: Patch) -> None:
    """CONNACK leaves before the log has the session, or a claim that says all of it."""

    async def open_session() -> None:
        loaded = await LoadSession(await ClaimSession())
        await Welcome(loaded.session_present)
        await Save()
        reached = None
        if loaded.is_behind:
            reached = await CatchUp(await RouteFilters())
        await GoLive(reached)

    patch.setattr(opening, "open_session", open_session)
    patch.setattr(opening, "OLD_RELEASE", 1)


def settle_what_was_stored(patch: Patch) -> None:
    """Of a session that was granted to a dead gateway only what was stored before is known."""
    patch.setattr(acts, "_as_claimed", lambda *_: None)


def settle_who_was_not_told(patch: Patch) -> None:
    """A claim counts for what its client may know also where it cannot have been told."""
    as_claimed = acts._as_claimed

    def settled(key: Key, stored: Any, claim: Claim) -> Any:
        later = replace(claim, clean_start=False, at_ms=0)
        if stored is not None:
            stored = replace(stored, disconnected_at_ms=None, will_at_ms=None)
        return as_claimed(key, stored, later)

    patch.setattr(acts, "_as_claimed", settled)


def claim_anew(patch: Patch) -> None:
    """Who waited by a full claim while its gateway was cut off waits on by another one."""
    confirm = Holder.confirm

    def keep(self: Holder[Any], now: float) -> None:
        waiting = self._all_claiming()
        said = [one.session for _, one in waiting]
        for _, one in waiting:
            one.session = None
        confirm(self, now)
        for (key, one), session in zip(waiting, said, strict=True):
            for again in self._claiming.get(key, ()):
                if again.opening is one.opening:
                    again.session = session

    patch.setattr(Holder, "confirm", keep)


def welcome_unheld(patch: Patch) -> None:
    """CONNACK leaves by a full claim though others may have the session by now."""
    patch.setitem(opening.PERFORM, Hold, lambda *_: None)


def tell_no_who_was_given(patch: Patch) -> None:
    """A client is told no although its full claim may have been granted, and settled."""

    def turn_away(
        self: Holder[Any], key: Key, claiming: Any, refusal: Any, reason: str, **_: bool
    ) -> None:
        self._host.refuse(key, claiming.opening, refusal, reason)

    patch.setattr(Holder, "_turn_away", turn_away)


def go_live_behind(patch: Patch) -> None:
    """A session goes live where its filters were routed, not where the router is by now."""
    patch.setattr(Missed, "follow", lambda *_: True)


def catch_up_with_nothing(patch: Patch) -> None:
    """A session that comes back is not given what it has missed."""

    def catch_up(self: Opening, _: CatchUp) -> Any:
        missed = Missed([self.process.inbound], [self.process.inbound], 0)
        self.process.later(self.restore_exchanges, missed)
        return opening.LATER

    patch.setitem(opening.PERFORM, CatchUp, catch_up)


def forget_what_was_in_flight(patch: Patch) -> None:
    """What a client has not acknowledged does not go out again elsewhere."""
    patch.setattr(OutgoingMessages, "restore", lambda *_: None)


def send_what_was_released(patch: Patch) -> None:
    """A QoS 2 message that the client has goes out again, under another identifier."""
    restore = OutgoingMessages.restore

    def again(self: OutgoingMessages[int], exchange: Exchange[int]) -> None:
        restore(self, exchange._replace(packet_id=exchange.packet_id + 100))

    patch.setattr(OutgoingMessages, "restore", again)


def forget_what_was_received(patch: Patch) -> None:
    """Where a session comes back nobody knows which QoS 2 messages of its client are stored."""
    patch.setattr(IncomingMessages, "restore", lambda *_: None)


def take_repetitions_for_new(patch: Patch) -> None:
    """A QoS 2 PUBLISH that is repeated is stored again."""

    def receive_publish(self: IncomingMessages, packet_id: int) -> Arrival:
        self._stored[packet_id] = False
        return Arrival.NEW

    patch.setattr(IncomingMessages, "receive_publish", receive_publish)


def free_identifiers_too_soon(patch: Patch) -> None:
    """PUBCOMP leaves before the log knows that the identifier is free."""

    def take_pubrel(self: Receiving, packet_id: int, _name: str) -> None:
        self.incoming.receive_pubrel(packet_id)
        self.pubcomp(packet_id)

    patch.setattr(Receiving, "take_pubrel", take_pubrel)


def look_where_it_is_not(patch: Patch) -> None:
    """A message that the log has not answered for is looked for behind those that it has."""
    patch.setattr(IncomingMessages, "look_for", lambda *_: None)


def subscribe_before_progress(patch: Patch) -> None:
    """The first subscription of a session is stored, and not from where on it is to be read for."""
    patch.setattr(Serving, "has_progress", True)


def take_what_is_stored_for_nothing(patch: Patch) -> None:
    """A session that comes back goes live as if it had missed nothing."""
    load = Opening.load
    patch.setitem(
        opening.PERFORM, LoadSession, lambda self, one: load(self, one)._replace(is_behind=False)
    )


def forget_that_it_was_sent(patch: Patch) -> None:
    """What a dead holder has sent last goes out again as if it had not been sent."""
    patch.setattr(MaybeSent, "take", lambda *_: False)


def take_over_once(patch: Patch) -> None:
    """A holder that goes before it has sent again what a dead one may have sent tells of none."""
    snapshot = Serving.snapshot
    patch.setattr(Serving, "snapshot", lambda self: replace(snapshot(self), sent_before=[]))


def leave_out_what_waits(patch: Patch) -> None:
    """The cursor of a session is past what waits for room in its window."""
    patch.setattr(Sending, "first_waiting", lambda _: None)


def give_to_anybody(patch: Patch) -> None:
    """A session is whoever's that comes with its client identifier."""
    patch.setattr(Claim, "may_have", lambda *_: True)


def leave_void_claims(patch: Patch) -> None:
    """A void claim stays the last of its session in the log."""
    patch.setattr(SessionsOfShard, "_write_again", lambda *_: None)


def believe_what_compaction_left(patch: Patch) -> None:
    """Who has claimed a session before its record is read has it, whosever it is."""
    patch.setattr(SessionsOfShard, "_void_claims", lambda *_: None)


def end_what_was_taken(patch: Patch) -> None:
    """The owner ends what it has begun without a claim for whoever claims it."""
    patch.setattr(ownership, "TakenSession", lambda number, _: TakenSession(number, ANYBODY))


def displace_who_waits(patch: Patch) -> None:
    """Who comes to a gateway takes the place of who waits there, whoever that is."""

    def waiting(self: Holder[Any], key: Key, _principal: str | None) -> Any:
        return next(iter(self._claiming.get(key, ())), None)

    patch.setattr(Holder, "_waiting", waiting)


def hear_nobody_in_progress(patch: Patch) -> None:
    """Progress under a later epoch does not tell that somebody holds the session."""

    def learn_epoch(self: SessionsOfShard, key: Key, entry: ShardEntry | None, epoch: int) -> None:
        if entry is None:
            self._store.put(key, ShardEntry(epoch, UNKNOWN_RUN))
        elif epoch > entry.epoch:
            entry.epoch = epoch
            self._store.put(key, entry)

    patch.setattr(SessionsOfShard, "learn_epoch", learn_epoch)


def forget_whose_a_claim_is(patch: Patch) -> None:
    """A claim that comes back from disk is anybody's."""
    patch.setattr(shards, "Claim", lambda *parts: replace(Claim(*parts), principal=ANYBODY))


def go_by_the_calendar(patch: Patch) -> None:
    """An owner takes the calendar of its machine for the log's time."""
    patch.setattr(LogClock, "now_ms", lambda self: self._clock.now_ms())


def believe_the_holder(patch: Patch) -> None:
    """When a client has gone is what its gateway says, not when the log came to know."""

    def closed_at_ms(session: SessionOutline | None, *_: object) -> int | None:
        return None if session is None else session.disconnected_at_ms

    patch.setattr(stored_sessions, "_closed_at_ms", closed_at_ms)


def forget_what_waits_before_it(patch: Patch) -> None:
    """The record of a session that is behind begins where reading does, though its queue waits."""
    patch.setattr(serving, "recorded", lambda cursor, _: list(cursor))


def read_behind_the_first(patch: Patch) -> None:
    """A session that falls behind goes on behind the message that had no room."""

    def first_unread(next_offsets: Any, floor: Any, partition: int, offset: int) -> list[int]:
        return fallen_behind.first_unread(next_offsets, floor, partition, offset + 1)

    patch.setattr(serving, "first_unread", first_unread)


def notice_no_standstill(patch: Patch) -> None:
    """A gateway goes by its own clock, though its machine may have been frozen."""
    patch.setattr(Standstill, "beyond", lambda *_: 0.0)


def know_the_standstill_late(patch: Patch) -> None:
    """What the log says does not count until a heartbeat has come back."""
    patch.setattr(LeasedNode, "heard_log", lambda *_: None)
    patch.setattr(LeasedNode, "thaw", lambda _: None)


MUTANTS: Final[list[tuple[Callable[[Patch], None], int | Family]]] = [
    (ignore_epochs, 906),
    (settle_without_closing, 45),
    (settle_without_looking, lose_the_answer),
    (grant_at_once, 0),
    (clear_wills_before, 404),
    (announce_no_wills, 436),
    (publish_wills_without_looking, 216),
    (ignore_releases, 0),
    (skip_confirming, 386),
    (skip_the_lease, 192),
    (resurrect_sessions, 906),
    (use_marks_of_another_run, 2_097),
    (save_steps_later, crash_at_each_event),
    (forget_that_there_was_a_session, 0),
    (settle_the_living, 44),
    (give_what_was_taken, change_owners),
    (leave_what_was_taken, change_owners),
    (deliver_unsure, change_owners),
    (hand_over_twice, 12_176),
    (judge_by_the_claim, 41),
    (own_by_word, 192),
    (judge_the_lease_by_ticks, 280),
    (welcome_before_it_is_saved, 123),
    (settle_what_was_stored, 123),
    (settle_who_was_not_told, 499),
    (welcome_unheld, wait_while_cut_off),
    (claim_anew, wait_while_cut_off),
    (tell_no_who_was_given, wait_while_cut_off),
    (go_live_behind, move_while_messages_come),
    (catch_up_with_nothing, 50),
    (forget_what_was_in_flight, crash_at_each_event),
    (send_what_was_released, crash_at_each_event),
    (forget_what_was_received, crash_at_each_event),
    (take_repetitions_for_new, 42),
    (free_identifiers_too_soon, lose_the_answer),
    (look_where_it_is_not, lose_the_answer),
    (subscribe_before_progress, crash_at_each_event),
    (take_what_is_stored_for_nothing, crash_at_each_event),
    (forget_that_it_was_sent, take_over_twice),
    (take_over_once, take_over_twice),
    (leave_out_what_waits, crash_at_each_event),
    (forget_what_waits_before_it, fall_behind_and_crash),
    (read_behind_the_first, fall_behind_and_crash),
    (go_by_the_calendar, 1_079),
    (believe_the_holder, 31),
    (give_to_anybody, strangers_come),
    (leave_void_claims, outlast_a_stranger),
    (believe_what_compaction_left, strangers_come),
    (end_what_was_taken, strangers_come),
    (displace_who_waits, strangers_come),
    (hear_nobody_in_progress, strangers_come),
    (forget_whose_a_claim_is, keep_on_disk),
]
"""Planted faults, and what finds each: seeds around the first that does, or some schedules."""
