"""How far sessions have come reaches the log soon, in order, and before whatever relies on it."""

import asyncio
from unittest.mock import patch

import pytest

from ingest.gateway.base.ending import Ending
from ingest.gateway.log.lease import Lease
from ingest.gateway.sending import progress
from ingest.gateway.sending.progress import (
    MAX_REST_SECONDS,
    MAX_SAVES_UNDER_WAY,
    RESTED_PER_SECOND,
    WINDOW_STEP,
    ProgressSaver,
    SessionProgress,
)
from ingest.gateway.sending.session_log import SessionLog
from ingest.protocol.packets import Puback, Publish
from ingest.session.client.checkpoint import SaveQueue
from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter
from mqlake.records.messages import SESSIONS
from mqlake.records.progress import ProgressRecord, decode_marks, decode_progress
from mqlake.records.sessions import PROGRESS
from mqlake.records.shards import Run
from tests.ingest.gateway.harness import Client, new_log, running_gateway, turns, until
from tests.ingest.gateway.test_survival import publish, resume, site

pytestmark = pytest.mark.anyio

MAX_REPEATED = 3


class Steps:
    """One session's progress: each step makes the cursor greater."""

    def __init__(self) -> None:
        self.log = new_log()
        writer = MemoryLogWriter(self.log)
        lease = Lease(ManualClock(), 10, lambda: None)
        ending = Ending(asyncio.Event(), MemoryLogReader(self.log))
        loop, me = asyncio.get_running_loop(), Run("gateway-1", "1")
        self.session_log = SessionLog(writer, me, lease, ending, 1, loop)
        # So that a slow machine does not end the rest.
        with patch.object(progress, "MIN_REST_SECONDS", MAX_REST_SECONDS):
            self.saver = ProgressSaver(self.session_log, loop, max_repeated_messages=MAX_REPEATED)
        self.cursor = 0
        self.done: list[str] = []
        self.progress = SessionProgress(
            self.saver, ("default", "alice"), 7, self.snapshot, lambda: self.done.append("room")
        )

    def snapshot(self) -> ProgressRecord:
        return ProgressRecord("1", [self.cursor], settled=True)

    def step(self) -> None:
        self.cursor += 1

    def take(self, name: str) -> None:
        """Take a step that something named depends on."""
        self.step()
        self.progress.after_saved(lambda: self.done.append(name))

    @property
    def saved(self) -> list[int]:
        return [
            decode_progress(record.value or b"").cursor[0] for record in self.log.records(SESSIONS)
        ]


@pytest.fixture
async def steps() -> Steps:
    return Steps()


async def test_steps_of_one_turn_share_a_record(steps: Steps) -> None:
    for _ in range(3):
        steps.step()
        steps.progress.touch()
    await until(lambda: steps.saved)
    await turns()
    assert steps.saved == [3]


async def test_a_step_does_not_wait_for_the_record_before_it(steps: Steps) -> None:
    steps.log.hold_reports()
    for number in range(MAX_SAVES_UNDER_WAY + 2):
        steps.take(str(number))
        await turns()
    assert steps.done == []
    steps.log.release_reports()
    await until(lambda: len(steps.done) == MAX_SAVES_UNDER_WAY + 2)
    assert steps.done == ["0", "1", "2", "3", "4", "5"]
    # What found the way full shares the next record.
    assert steps.saved == [1, 2, 3, 4, 6]


async def test_steps_that_nobody_waits_for_share_the_record_after_the_one_on_its_way(
    steps: Steps,
) -> None:
    steps.log.hold_reports()
    for _ in range(5):
        steps.step()
        steps.progress.touch()
        steps.saver.save_due()
    steps.log.release_reports()
    await until(lambda: len(steps.saved) == 2)
    assert steps.saved == [1, 5]


@pytest.mark.parametrize("busy", [1, 10, 100])
async def test_busy_sessions_share_a_number_of_records_a_second(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    start = steps.saver.now()
    written = 0
    rests_until = [start] * busy
    for milliseconds in range(1_500):
        now = start + milliseconds / 1_000
        monkeypatch.setattr(steps.saver, "now", lambda now=now: now)
        for session in range(busy):
            if now + 1e-9 >= rests_until[session]:  # milliseconds are no binary fractions
                rests_until[session] = steps.saver.begin_rest()
                written += milliseconds >= 500
    assert 0.7 <= written / max(RESTED_PER_SECOND, busy / MAX_REST_SECONDS) <= 1.1


async def test_a_session_after_a_rest_does_not_wait(steps: Steps) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(2):
        steps.step()
        steps.progress.touch()
        steps.saver.save_due()
    await until(lambda: steps.saved[-1:] == [steps.cursor])
    await until(lambda: not steps.progress.rests(loop.time()))
    records = len(steps.saved)
    steps.step()
    steps.progress.touch()
    steps.saver.save_due()
    await turns()
    assert len(steps.saved) == records + 1


async def test_what_rests_is_written_when_somebody_waits_for_it(steps: Steps) -> None:
    for _ in range(2):
        steps.step()
        steps.progress.touch()
        steps.saver.save_due()
    await turns()
    assert steps.saved == [1]
    steps.take("a")
    await turns()
    assert steps.saved == [1, 3]


async def test_what_rests_is_written_before_marks(steps: Steps) -> None:
    for _ in range(2):
        steps.step()
        steps.progress.touch()
        steps.saver.save_due()
    assert steps.saver.save_all()
    await turns()
    assert steps.saved == [1, 2]


async def test_a_session_that_is_about_to_be_held_up_does_not_wait_for_its_last_record(
    steps: Steps,
) -> None:
    steps.log.hold_reports()
    for _ in range(2):
        steps.progress.sent()
    for _ in range(3):
        steps.step()
        steps.progress.acknowledged()
        steps.saver.save_due()
    steps.log.release_reports()
    await until(lambda: len(steps.saved) == 3)
    assert steps.saved == [1, 2, 3]


@pytest.mark.parametrize("failed", [1, 2, 3])
async def test_what_a_record_was_to_tell_the_next_one_tells(steps: Steps, failed: int) -> None:
    steps.log.hold_reports()
    for name in ("a", "b", "c"):
        steps.take(name)
        await turns()
    steps.log.fail_next(LogError("not now", definite=True), count=failed)
    steps.log.release_reports()
    await until(lambda: len(steps.done) == 3)
    assert steps.done == ["a", "b", "c"]
    assert steps.saved == [3] if failed >= 2 else [2, 3]


async def test_a_log_that_takes_nothing_is_asked_again(steps: Steps) -> None:
    steps.log.fail_next(LogError("not now", definite=True))
    steps.take("a")
    await turns()
    assert not steps.done
    await until(lambda: steps.done)
    assert steps.saved == [1]


async def test_only_so_many_messages_run_ahead_of_the_log(steps: Steps) -> None:
    progress = steps.progress
    steps.log.hold_reports()
    for _ in range(MAX_REPEATED):
        assert progress.has_room
        progress.sent()
    assert not progress.has_room
    progress.acknowledged()
    await turns()
    assert not progress.has_room
    steps.log.release_reports()
    await until(lambda: progress.has_room)
    assert steps.done == ["room"]


async def test_acknowledgements_of_a_record_that_failed_count_when_the_log_has_them(
    steps: Steps,
) -> None:
    for _ in range(MAX_REPEATED):
        steps.progress.sent()
    steps.log.fail_next(LogError("not now", definite=True))
    for _ in range(MAX_REPEATED):
        steps.progress.acknowledged()
    await until(lambda: steps.done)
    for _ in range(MAX_REPEATED - 1):
        assert steps.progress.has_room
        steps.progress.sent()
    assert steps.progress.has_room


async def test_all_is_saved_at_once_also_what_has_to_wait(steps: Steps) -> None:
    steps.log.hold_reports()
    for _ in range(MAX_SAVES_UNDER_WAY + 1):
        steps.take("")
        await turns()
    steps.step()
    steps.progress.touch()
    assert steps.saver.save_all()
    assert steps.saver.save_all()
    steps.log.release_reports()
    await until(lambda: len(steps.saved) == MAX_SAVES_UNDER_WAY + 1)
    assert steps.saved[-1] == MAX_SAVES_UNDER_WAY + 2


async def test_a_closed_progress_says_nothing(steps: Steps) -> None:
    steps.take("a")
    steps.progress.close()
    steps.take("b")
    steps.progress.touch()
    assert steps.saver.save_all()
    await turns()
    assert (steps.saved, steps.done) == ([], [])


async def test_a_queue_keeps_the_order_of_what_waits_and_what_does_not(steps: Steps) -> None:
    handled: list[str] = []
    queue: SaveQueue[str] = SaveQueue(handled.append)
    queue.add("a", None)
    assert handled == ["a"]
    for name in ("b", "C", "d", "E", "f"):
        queue.add(name, steps.progress if name.isupper() else None)
    assert handled == ["a", "b"]
    assert len(queue) == 4
    await until(lambda: not queue)
    assert handled == ["a", "b", "C", "d", "E", "f"]


async def test_what_was_taken_out_of_a_queue_is_not_handled(steps: Steps) -> None:
    handled: list[str] = []
    queue: SaveQueue[str] = SaveQueue(handled.append)
    queue.add("A", steps.progress)
    queue.add("b", None)
    assert queue.take_all() == ["A", "b"]
    await until(lambda: steps.saved)
    await turns()
    assert handled == []


async def test_a_crash_repeats_no_more_messages_than_may_be_repeated() -> None:
    async with site() as (log, router):
        async with running_gateway(
            log=log, router=router, max_repeated_messages=MAX_REPEATED
        ) as harness:
            client, _ = await resume(harness)
            await client.subscribe("a/b", 1)
            publisher = await Client.connect(harness.port, "publisher")
            await harness.saved()
            log.hold_reports(SESSIONS)
            for number in range(6):
                await publisher.publish("a/b", b"%d" % number, 1)
            # All acknowledged; the log does not hear of it.
            assert await client.payloads(MAX_REPEATED) == [b"0", b"1", b"2"]
            await client.expect_nothing()
            await harness.kill()
        log.release_reports()
        async with running_gateway(
            log=log, router=router, max_repeated_messages=MAX_REPEATED
        ) as harness:
            client, _ = await resume(harness)
            messages = [await client.message() for _ in range(6)]
            assert [one.payload for one in messages] == [b"%d" % number for number in range(6)]
            # [MQTT5-3.3.1-1] [MQTT311-3.3.1-1]
            assert [one.dup for one in messages] == [True] * 3 + [False] * 3
            # Then it is over, and no record tells of it any more.
            sender = harness.gateway.sessions.get("default", "alice").sender
            await until(lambda: sender.maybe_sent is None)


async def test_a_session_runs_further_ahead_only_while_it_waits_for_its_records(
    steps: Steps,
) -> None:
    steps.saver.max_repeated_messages = 3 * WINDOW_STEP - 1
    steps.progress = SessionProgress(
        steps.saver, ("default", "bob"), 7, steps.snapshot, lambda: steps.done.append("room")
    )

    def fill() -> int:
        count = 0
        while steps.progress.has_room:
            steps.progress.sent()
            count += 1
        return count

    async def acknowledge(count: int) -> None:
        for _ in range(count):
            steps.step()
            steps.progress.acknowledged()
        await until(lambda: steps.saved[-1:] == [steps.cursor])

    for window in (WINDOW_STEP, 2 * WINDOW_STEP, 3 * WINDOW_STEP - 1, 3 * WINDOW_STEP - 1):
        assert fill() == window
        await acknowledge(window)
    assert steps.done == ["room"] * 4
    # One at a time: it needs no more than the first step.
    for _ in range(2):
        steps.progress.sent()
        await acknowledge(1)
    assert fill() == WINDOW_STEP


async def test_messages_go_on_when_the_log_has_heard_of_the_earlier_ones() -> None:
    async with running_gateway(max_repeated_messages=MAX_REPEATED) as harness:
        client, _ = await resume(harness)
        await client.subscribe("a/b", 1)
        await publish(harness, *(b"%d" % number for number in range(20)))
        assert await client.payloads(20) == [b"%d" % number for number in range(20)]


async def test_a_session_without_progress_is_not_held_up() -> None:
    async with running_gateway(max_repeated_messages=1) as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a/b", 1)
        await publish(harness, b"1", b"2")
        assert [(await client.expect(Publish)).payload for _ in range(2)] == [b"1", b"2"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_marks_pass_no_message_that_no_record_tells_of(qos: int) -> None:
    """A record of the session is on its way when a message comes; then come the marks."""
    async with site() as (log, router):
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            await client.subscribe("a/b", qos)
            publisher = await Client.connect(harness.port, "publisher")
            await harness.saved()
            assert marks_of(log) == harness.gateway.delivered.next_offsets()
            log.hold_reports(SESSIONS)
            progress = harness.gateway.sessions.get("default", "alice").progress
            assert progress is not None
            for _ in range(MAX_SAVES_UNDER_WAY):
                progress.touch()
                progress.save()
            await publisher.publish("a/b", b"1", qos)
            await harness.rounds_are_over()
            harness.gateway.sessions.marks.save()
            log.release_reports()
            await until(lambda: marks_of(log) == harness.gateway.delivered.next_offsets())
            await harness.kill()
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            assert await client.payloads(1) == [b"1"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_marks_pass_no_message_whose_record_has_timed_out(qos: int) -> None:
    async with site() as (log, router):
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            await client.subscribe("a/b", qos)
            publisher = await Client.connect(harness.port, "publisher")
            await harness.saved()
            with harness.timing_out(PROGRESS.encode()) as timed_out:
                await publisher.publish("a/b", b"1", qos)
                await harness.delivered()
                await harness.saved()
                assert timed_out
                await harness.kill()
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            assert await client.payloads(1) == [b"1"]


async def test_marks_go_on_when_the_log_has_what_has_timed_out() -> None:
    async with running_gateway() as harness:
        log = harness.log
        client, _ = await resume(harness)
        await client.subscribe("a/b", 1)
        await harness.saved()
        with harness.timing_out(PROGRESS.encode()) as timed_out:
            await publish(harness, b"1")
            await client.message()
            await harness.delivered()
            await harness.saved()
            before = marks_of(log)
            assert timed_out
            assert before != harness.gateway.delivered.next_offsets()
        await until(lambda: marks_of(log) == harness.gateway.delivered.next_offsets())


async def test_marks_pass_no_message_that_came_when_the_client_had_just_gone() -> None:
    async with site() as (log, router):
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            await client.subscribe("a/b", 1)
            await harness.saved()
            session = harness.gateway.sessions.get("default", "alice")
            # Its QoS 2 message is not stored yet, so it cannot leave.
            harness.gateway.publisher.publish = lambda *_: None  # type: ignore[method-assign]
            client.send(Publish("other", b"", 2, packet_id=1))
            await until(lambda: session.incoming.is_storing)
            client.cut()
            await until(lambda: session.connection is None)
            del harness.gateway.publisher.publish
            await publish(harness, b"1")
            await harness.saved()
            await harness.kill()
        async with running_gateway(log=log, router=router) as harness:
            client, _ = await resume(harness)
            assert await client.payloads(1) == [b"1"]


def marks_of(log: MemoryLog) -> list[int]:
    """Return the next offsets that the last marks stand for."""
    marks = [record for record in log.records(SESSIONS) if (record.key or b"").startswith(b"g/")]
    return [mark + 1 for mark in decode_marks(marks[-1].value or b"").marks] if marks else []


async def test_an_acknowledgement_that_came_twice_counts_once() -> None:
    async with running_gateway(max_repeated_messages=MAX_REPEATED) as harness:
        client, _ = await resume(harness)
        await client.subscribe("a/b", 1)
        await publish(harness, b"1")
        packet_id = (await client.expect(Publish)).packet_id
        client.send(Puback(packet_id), Puback(packet_id))
        await client.expect_nothing()
        await harness.saved()
        publisher = await Client.connect(harness.port, "bob")
        harness.log.hold_reports(SESSIONS)  # so no further acknowledgement counts
        for number in range(2, 3 + MAX_REPEATED):
            await publisher.publish("a/b", b"%d" % number, 1)
        for _ in range(MAX_REPEATED):
            client.send(Puback((await client.expect(Publish)).packet_id))
        await client.expect_nothing()
        harness.log.release_reports()
        await client.expect(Publish)
