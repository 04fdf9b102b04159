"""The order of sessions holds in thousands of small worlds, and each planted fault is found."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from ingest.session import acts
from ingest.session.effects import Append, PublishWills, Tell
from ingest.session.holder import Holder
from ingest.session.ownership import Entry, Shard
from mqlake.session_records import NEVER_EXPIRES, MarksRecord, decode_marks, will_exchange
from tests.ingest.session.simulation.clients import TENANT
from tests.ingest.session.simulation.gateway import Process
from tests.ingest.session.simulation.lease import SILENCE_MS
from tests.ingest.session.simulation.schedule import (
    CLIENTS,
    LATE_MS,
    Fault,
    Schedule,
    Step,
    make_schedule,
)
from tests.ingest.session.simulation.search import explain, run, schedules_wanted, search
from tests.ingest.session.simulation.serving import Serving
from tests.ingest.session.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mqlake.shard_records import Claim, Key, Run, Stamp
    from tests.ingest.session.simulation.invariants import Violation

Patch = pytest.MonkeyPatch

CHUNKS: Final = 20
SCHEDULES: Final = schedules_wanted(20_000)

FREE: Final = 300
"""Schedules in which sessions that no record tells of change their gateway."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_breaks_a_promise(chunk: int) -> None:
    size = SCHEDULES // CHUNKS
    found = search(range(chunk * size, (chunk + 1) * size))
    assert found is None, explain(make_schedule(found[0]))


def stand_still_while_publishing() -> Iterator[Violation | None]:
    """Have a gateway stand still at each event while a client publishes, who then moves on."""
    steps = (
        Step(2_500, "connect", 0, 0, expiry=NEVER_EXPIRES),
        Step(4_000, "publish"),
        Step(4_300, "connect", 0, 1, expiry=NEVER_EXPIRES, is_half_open=True),
        Step(22_000, "wait"),
    )
    for event in range(20, 45):
        for seed in range(4):
            pause = Fault(event, "pause", 0, 13_000)
            yield run(Schedule(seed, 2, 1, steps, (pause,)))


def test_a_message_that_comes_when_its_gateway_goes_on_is_stored_once() -> None:
    assert not [found for found in stand_still_while_publishing() if found is not None]


def test_a_message_is_stored_twice_if_its_gateway_is_settled_before_it_can_come(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(Process, "is_spent", Process.is_dead)
    found = [found for found in stand_still_while_publishing() if found is not None]
    assert {one.name for one in found} == {"exactly once"}


def change_owners() -> Iterator[Violation | None]:
    """Have a clean session's client move while the shard of its session changes its owner."""

    def connect(at_ms: int, gateway: int, *, again: bool = False) -> Step:
        return Step(at_ms, "connect", 0, gateway, clean=True, is_half_open=again)

    for number in range(FREE):
        random = Random(number)
        at, gateway = 6_000, random.randrange(2)
        moved_at = at + 300 + random.choice((3_000, 3_300, 3_800, 4_500, 6_000))
        ms = moved_at - at + random.choice((-300, 0, 100, 300, 600, 1_000, 2_000))
        event = random.randint(8, 12)  # just after it has subscribed, or a little later
        faults: tuple[Fault, ...] = (
            Fault(event, random.choice(("pause", "mute")), gateway, ms),
            # Then it reads deliveries for a while before it reads shards.
            Fault(event, "slow", gateway, ms + random.choice((-2_000, 200, 700, 1_500))),
        )
        steps = [connect(at, gateway), connect(moved_at, 1 - gateway, again=True)]
        if random.random() < 0.3:  # the other one comes back, and owns the shard without a silence
            faults = (Fault(5, "crash", 1 - gateway),)
            moved_at = at + random.randrange(600)
            steps[1] = connect(moved_at, 1 - gateway, again=True)
            steps.append(Step(at - LATE_MS - random.randrange(600), "restart", 1 - gateway))
        steps += [
            Step(moved_at + random.choice((2, 10, 50, 90, 130)) * part, "message", qos=1)
            for part in range(1, 30)
        ]
        ordered = tuple(sorted(steps, key=lambda step: step.at_ms))
        yield run(Schedule(number, 2, 1, ordered, faults))


def test_a_clean_session_has_one_holder_while_its_shard_changes_its_owner() -> None:
    assert not [found for found in change_owners() if found is not None]


def test_a_schedule_is_the_same_each_time() -> None:
    transcripts: list[list[str]] = [[], []]
    for transcript in transcripts:
        World(make_schedule(7), transcript).run()
    assert transcripts[0] == transcripts[1]


def ignore_epochs(patch: Patch) -> None:
    """Records of a session count whatever their epoch."""
    patch.setattr(Shard, "_counts", lambda *_: True)


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

    async def settle(shard: Shard, run: Run, now_ms: int) -> None:
        keys = shard.store.held_by(run)
        records: list[Any] = []
        for key in keys:
            entry = shard.store.get(key)
            assert entry is not None
            progress = acts._progress(shard, key, entry)
            records += acts._settled(shard, run, key, entry, progress, set(), now_ms)
        await Append(records)
        shard.settled(run)

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
        await Append(records)
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
    """A gateway that was deaf goes on as if nothing had happened."""
    patch.setattr(Holder, "confirm", lambda self, _: self._host.confirmed())


def skip_the_lease(patch: Patch) -> None:
    """A gateway does not notice that its lease is over."""

    def may_act(self: Process) -> bool:
        self.is_isolated = False
        return True

    patch.setattr(Process, "may_act", may_act)


def resurrect_sessions(patch: Patch) -> None:
    """A late record of a session that has ended counts."""
    counts = Shard._counts

    def count(self: Shard, entry: Entry, stamp: Stamp) -> bool:
        return (entry.session is None and stamp.owner is None) or counts(self, entry, stamp)

    patch.setattr(Shard, "_counts", count)


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
    save = Serving.save

    def save_later(self: Serving, then: Callable[[], object]) -> None:
        then()
        save(self, lambda: None)

    patch.setattr(Serving, "save", save_later)


def forget_that_there_was_a_session(patch: Patch) -> None:
    """Session Present is taken from whether the client wanted nothing, not from what is stored."""
    connack = Serving.connack

    def say(self: Serving, *, is_present: bool) -> None:
        del is_present
        connack(self, is_present=not self.connection.options.clean)

    patch.setattr(Serving, "connack", say)


def settle_the_living(patch: Patch) -> None:
    """A gateway is dead for the others as soon as it is silent."""

    def is_dead(self: Process, run: Run) -> bool:
        return run != self.me and self.is_silent_for(run, SILENCE_MS)

    patch.setattr(Process, "is_dead", is_dead)


def give_what_was_taken(patch: Patch) -> None:
    """The owner hands a session over that it has begun itself."""

    def take(self: Shard, key: Key, _number: int) -> bool:
        return self.is_active and self.store.get(key) is None

    patch.setattr(Shard, "take", take)


def leave_what_was_taken(patch: Patch) -> None:
    """An owner leaves without a claim for the sessions that it has begun without one."""
    leave = Shard._leave

    async def leave_them(self: Shard) -> None:
        self._taken.clear()
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


MUTANTS: Final[list[tuple[Callable[[Patch], None], int]]] = [
    (ignore_epochs, 177),
    (settle_without_closing, 44),
    (settle_without_looking, 4_383),
    (grant_at_once, 6),
    (clear_wills_before, 196),
    (announce_no_wills, 196),
    (publish_wills_without_looking, 340),
    (ignore_releases, 6),
    (skip_confirming, 717),
    (skip_the_lease, 717),
    (resurrect_sessions, 177),
    (use_marks_of_another_run, 5189),
    (save_steps_later, 81),
    (forget_that_there_was_a_session, 0),
    (settle_the_living, 99),
    (give_what_was_taken, 8),
    (hand_over_twice, 1_447),
    (judge_by_the_claim, 6),
    (own_by_word, 717),
]
"""Planted faults, and the first seed that finds each: it is looked for around that one."""

AROUND: Final = 60


@pytest.mark.parametrize(("plant", "seed"), MUTANTS, ids=[one.__name__ for one, _ in MUTANTS])
def test_a_planted_fault_is_found(
    monkeypatch: Patch, plant: Callable[[Patch], None], seed: int
) -> None:
    plant(monkeypatch)
    assert search(range(max(0, seed - AROUND), seed + AROUND)) is not None


@pytest.mark.parametrize("plant", [give_what_was_taken, leave_what_was_taken, deliver_unsure])
def test_a_fault_with_sessions_that_no_record_tells_of_is_found(
    monkeypatch: Patch, plant: Callable[[Patch], None]
) -> None:
    plant(monkeypatch)
    assert {found.name for found in change_owners() if found is not None} == {"one holder"}
