"""From `mqlake.outputs` to the lanes: who has to do what, what came before, where we are."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Message

from mqlake.clock import Clock
from mqlake.errors import InvalidRecord, LogError
from mqlake.records import (
    DEAD_LETTERS,
    HEADER_CHAIN,
    HEADER_OUTPUT,
    HEADER_RULE,
    INBOUND,
    OUTPUTS,
    RULES,
    RUNNER,
)
from mqlake.rule_records import (
    DeadLetter,
    Output,
    dead_letter_headers,
    decode_output,
    rule_record_key,
)
from rules.actions import make_action
from rules.actions.contract import Action, ActionError, Append, Work
from rules.errors import RuleError
from rules.model import ActionSpec
from rules.runner.checkpoint import (
    CHECKPOINT_KEY,
    CONFIG,
    Checkpoint,
    LaneKey,
    Place,
    Places,
    PublishedFrom,
    decode_checkpoint,
    encode_checkpoint,
)
from rules.runner.definitions import Definitions, RuleKey
from rules.runner.kafka import (
    Follower,
    KafkaTarget,
    LogAdmin,
    Record,
    StretchReader,
    consumer_options,
)
from rules.runner.lanes import BrokenAction, Lane, LaneLimits, Missed
from rules.runner.metrics import RuleMetrics
from rules.runner.progress import Batch, Origin, Progress
from rules.runner.services import RunnerServices
from rules.runner.settings import RulesSettings

logger = logging.getLogger(__name__)

METRICS_SECONDS: Final = 1.0
RULES_SECONDS: Final = 60.0
IDLE_CHECKPOINT_SECONDS: Final = 10.0
"""A checkpoint is never older than this, and the interval, while the process runs."""
PUBLISHED_MARGIN_MS: Final = 60_000
"""Nothing was published later than this after the last checkpoint of a run."""
UNUSED_LANE_SECONDS: Final = 600.0
MAX_ERROR_CHARACTERS: Final = 2_000

LaneGroup = tuple[bytes, bytes]
"""Key and header `rule` of outputs: a version of a rule."""


class Runner:
    """Runs the actions of all rules. Make it inside the event loop; keeps the contract `Stream`.

    Args:
        settings: Of the process.
        target: Appends to the log.
        clock: For latencies and patience.
        stop: Ends the process, with the reason.
    """

    def __init__(
        self,
        settings: RulesSettings,
        target: KafkaTarget,
        clock: Clock,
        stop: Callable[[str], None],
        incarnation: str,
    ) -> None:
        self._settings = settings
        self._target = target
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._services = RunnerServices(settings, target, clock, stop)
        self._options = consumer_options(settings.log.bootstrap_servers, settings.name)
        self._admin = LogAdmin(settings.log.bootstrap_servers)
        self._definitions = Definitions(self._take_deletion, self._take_definition)
        self._rules_follower = Follower(self._options, self._definitions.apply, _ignore_loss)
        self._follower = Follower(self._options, self._take_records, self._take_loss)
        self._metrics = RuleMetrics(settings.name, incarnation)
        self._limits = LaneLimits(settings.max_queued_outputs, settings.max_queued_bytes)
        self._lanes: dict[LaneGroup, tuple[Lane, ...]] = {}
        self._full: set[Lane] = set()
        self._progress = Progress({})
        self._published_from = PublishedFrom()
        self._recovery_ends: dict[int, int] = {}
        self._is_recovered = False
        self._is_started = False
        self._stalled: asyncio.Task[None] | None = None
        self._held: list[Record] = []
        self._readers: asyncio.LifoQueue[StretchReader] = asyncio.LifoQueue()
        self._closing: set[asyncio.Task[None]] = set()
        self._written = b""
        self._written_at = 0.0
        self._answered_at = 0.0
        self.outputs = 0
        self.repeated = 0
        self.malformed = 0

    async def start(self) -> None:
        """Go on where the last run has stopped.

        Raises:
            LogError: The log does not answer.
            InvalidRecord: The checkpoint is of another version.
        """
        await asyncio.to_thread(self._admin.ensure, RUNNER, CONFIG)
        for _ in range(self._settings.behind_readers):
            self._readers.put_nowait(StretchReader(self._options))
        rules_ends = await asyncio.to_thread(self._admin.ends, RULES)
        rules_begins = await asyncio.to_thread(self._admin.begins, RULES)
        self._rules_follower.start(RULES, rules_begins)
        if rules_begins[0] < rules_ends[0]:
            try:
                async with asyncio.timeout(RULES_SECONDS):
                    await self._definitions.wait_until(rules_ends[0])
            except TimeoutError as exc:
                raise LogError(
                    f"reading {RULES} took more than {RULES_SECONDS:g} s", definite=False
                ) from exc
        checkpoint, written_ms = await asyncio.to_thread(self._read_checkpoint)
        ends = await asyncio.to_thread(self._admin.ends, OUTPUTS)
        if checkpoint is None:
            begins = await asyncio.to_thread(self._admin.begins, OUTPUTS)
            inbound = await asyncio.to_thread(self._admin.begins, INBOUND)
            places = {partition: Place(offset) for partition, offset in begins.items()}
            checkpoint = Checkpoint(places, {}, inbound, is_clean=True)
        places = {p: checkpoint.places.get(p) or Place(0) for p in ends}
        self._progress = Progress(places)
        self._recovery_ends = {p: places[p].offset for p in ends} if checkpoint.is_clean else ends
        if not checkpoint.is_clean:
            self._services.published = await asyncio.to_thread(
                self._find_published, checkpoint.published_from, written_ms
            )
        self._published_from.note(checkpoint.published_from, self._progress.frontier())
        self._resume_lanes(checkpoint, places)
        self._follower.start(OUTPUTS, {p: place.offset for p, place in places.items()})
        self._look_recovered()
        self._is_started = True
        fields = {
            "behind": len(checkpoint.behind),
            "published": len(self._services.published),
            "clean": checkpoint.is_clean,
        }
        logger.info("actions run", extra={"fields": fields})

    async def run(self) -> None:
        """Write checkpoints and metrics until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_checkpoints())
            tasks.create_task(self._write_metrics())

    async def close(self, *, is_orderly: bool) -> None:
        """End everything.

        Args:
            is_orderly: Finish what is under way, for a while, and note where the next run goes on.
                False when another runner may be at work already, or something went wrong.
        """
        await self._follower.close()
        await self._rules_follower.close()
        if self._stalled is not None:
            self._stalled.cancel()
            await asyncio.gather(self._stalled, return_exceptions=True)
        lanes = self._all_lanes()
        if is_orderly and self._is_started:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.drain_seconds):
                    await asyncio.gather(*(lane.drain() for lane in lanes if lane.behind is None))
            for lane in lanes:
                lane.detach(float("inf"))
            with suppress(LogError):
                await self._checkpoint(is_clean=self._progress.is_done)
                await self._target.append(self._changed_metrics())
        await asyncio.gather(*(lane.close() for lane in lanes), *self._closing)
        await self._services.close()
        while not self._readers.empty():
            await asyncio.to_thread(self._readers.get_nowait().close)

    def health(self) -> tuple[bool, str]:
        """Tell whether actions are carried out, and what keeps them from it."""
        if self._clock.monotonic() - self._answered_at > 10.0:
            return False, "the log does not answer"
        lanes = self._all_lanes()
        behind = sum(lane.behind is not None for lane in lanes)
        detail = f"runs {len(lanes)} actions"
        return True, f"{detail}, {behind} of them behind" if behind else detail

    def figures(self) -> dict[str, Any]:
        return {
            "outputs": self.outputs,
            "repeated": self.repeated,
            "malformed": self.malformed,
            **self._metrics.totals(),
        }

    # What follows is what lanes ask for.

    def frontier(self) -> dict[int, int]:
        return self._progress.frontier()

    def snapshot(self) -> Places:
        return self._progress.snapshot()

    async def read_missed(
        self, key: LaneKey, places: Places, ends: dict[int, int], *, outputs: int, bytes_: int
    ) -> Missed:
        record_key = rule_record_key(key.tenant, key.rule)
        version = str(key.version).encode()

        def is_wanted(message: Message) -> bool:
            headers: Any = message.headers()
            return message.key() == record_key and (HEADER_RULE, version) in (headers or ())

        reader = await self._readers.get()
        try:
            # Shielded: the thread goes on when this task is cancelled, and keeps the reader.
            reading = asyncio.ensure_future(
                asyncio.to_thread(
                    reader.read,
                    OUTPUTS,
                    {p: place.offset for p, place in places.items()},
                    ends,
                    is_wanted,
                    max_records=outputs,
                    max_bytes=bytes_,
                )
            )
            reading.add_done_callback(lambda _: self._readers.put_nowait(reader))
        except BaseException:
            self._readers.put_nowait(reader)
            raise
        stretch = await asyncio.shield(reading)
        marks = {p: dict(place.marks) for p, place in places.items()}
        origins = {p: Origin(place.marks) for p, place in places.items()}
        works: list[tuple[Work, Origin]] = []
        for record in stretch.records:
            output = self._decode(record)
            if output is None or _is_repeated(output, marks[record.partition]):
                continue
            marks[record.partition][output.position.source] = output.mark
            works.append((self._work(output, key.action, record), origins[record.partition]))
        read_on = {p: Place(at, marks[p]) for p, at in stretch.positions.items()}
        return Missed(works, read_on, stretch.lost)

    async def bury(self, work: Work, function: str, error: str) -> None:
        output = work.output
        letter = DeadLetter(
            tenant=output.tenant,
            rule=output.rule,
            version=output.version,
            value=output.row,
            position=output.position,
            stage="action",
            error=error[:MAX_ERROR_CHARACTERS],
            topic_name=output.topic_name,
            client_id=output.client_id,
            action=f"{work.action}/{function}",
        )
        record = Append(
            DEAD_LETTERS,
            rule_record_key(output.tenant, output.rule),
            output.row,
            dead_letter_headers(letter),
        )
        while problems := await self._target.append([record]):
            logger.error("dead letter not written", extra={"fields": {"reason": str(problems[0])}})
            await asyncio.sleep(1.0)

    def has_room(self, lane: Lane) -> None:
        self._full.discard(lane)
        self._resume()

    # What follows takes the stream.

    def _take_records(self, records: list[Record]) -> None:
        if self._stalled is not None:
            self._held.extend(records)
            return
        try:
            self._hand_over(records)
        except Exception as exc:
            # What is left of them must not be passed over: the next run takes them again.
            logger.exception("outputs cannot be handed over")
            self._services.stop(f"outputs cannot be handed over: {exc!r}")

    def _hand_over(self, records: list[Record]) -> None:
        """Give outputs to the lanes of their versions, as far as those are known."""
        partitions = self._progress.partitions
        lanes_by_group = self._lanes
        batches: dict[int, Batch] = {}
        touched: set[Lane] = set()
        for number, record in enumerate(records):
            progress = partitions[record.partition]
            batch = batches.get(record.partition)
            if batch is None:
                batch = batches[record.partition] = progress.begin()
            output = self._decode(record)
            if output is not None:
                group = record.key or b"", str(output.version).encode()
                lanes = lanes_by_group.get(group)
                if lanes is None:
                    lanes = self._make_lanes(output, group)
                    if lanes is None:
                        self._stall(output, group, records[number:])
                        break
                if _is_repeated(output, progress.marks):
                    self.repeated += 1
                else:
                    self.outputs += 1
                    # A lane that falls behind now takes a place before this output.
                    for lane in lanes:
                        lane.offer(self._work(output, lane.key.action, record), batch)
                        touched.add(lane)
                    progress.mark(output.position.source, output.mark)
            progress.next_offset = record.offset + 1
        for partition, batch in batches.items():
            batch.close(partitions[partition].snapshot())
        for lane in touched:
            lane.pump()
            if lane.holds_up():
                self._full.add(lane)
        if self._full:
            self._follower.pause()
        if not self._is_recovered:
            self._look_recovered()

    def _decode(self, record: Record) -> Output | None:
        try:
            return decode_output(record.key or b"", record.value, record.headers)
        except InvalidRecord as exc:
            self.malformed += 1
            fields = {"partition": record.partition, "offset": record.offset, "reason": str(exc)}
            logger.warning("output not understood", extra={"fields": fields})
            return None

    def _work(self, output: Output, action: int, record: Record) -> Work:
        recovered = not self._is_recovered and record.offset < self._recovery_ends.get(
            record.partition, 0
        )
        return Work(output, action, record.partition, record.offset, recovered=recovered)

    def _stall(self, output: Output, group: LaneGroup, rest: list[Record]) -> None:
        """Wait until the actions of a version are known; nothing overtakes its output."""
        self._follower.pause()
        self._stalled = self._loop.create_task(self._wait_for_lanes(output, group, rest))

    async def _wait_for_lanes(self, output: Output, group: LaneGroup, rest: list[Record]) -> None:
        specs = await self._definitions.wait_for(output.tenant, output.rule, output.version)
        if specs is None:
            # The oldest versions go, and the rest of a deleted rule: their outputs have no actions.
            fields = {"rule": output.rule, "version": output.version}
            logger.warning("actions of an output are not known", extra={"fields": fields})
            self._lanes[group] = ()
        self._stalled = None
        held, self._held = self._held, []
        self._take_records([*rest, *held])
        self._resume()

    def _resume(self) -> None:
        if self._stalled is None and not self._full and self._follower.is_paused:
            self._follower.resume()

    def _take_loss(self, partition: int, first: int, end: int) -> None:
        fields = {"partition": partition, "first": first, "end": end}
        logger.error("the log no longer holds outputs", extra={"fields": fields})

    def _look_recovered(self) -> None:
        frontier = self._progress.frontier()
        if all(frontier[p] >= end for p, end in self._recovery_ends.items()):
            self._is_recovered = True

    # What follows is of lanes.

    def _make_lanes(self, output: Output, group: LaneGroup) -> tuple[Lane, ...] | None:
        """Return the lanes of a version, None when it is not known."""
        if self._definitions.is_deleted(output.tenant, output.rule):
            return ()
        specs = self._definitions.find(output.tenant, output.rule, output.version)
        if specs is None:
            return None
        lanes = tuple(
            lane
            for index, spec in enumerate(specs)
            if (lane := self._make_lane(output.tenant, output.rule, output.version, index, spec))
        )
        self._lanes[group] = lanes
        return lanes

    def _make_lane(
        self, tenant: str, rule: str, version: int, index: int, spec: ActionSpec
    ) -> Lane | None:
        action = self._make_action(spec)
        if action is None:
            return None
        fallbacks = [
            (inner.function, made)
            for inner in spec.fallback
            if (made := self._make_action(inner)) is not None
        ]
        return Lane(
            LaneKey(tenant, rule, version, index),
            spec.function,
            action,
            fallbacks,
            self._limits,
            self._metrics.counters(tenant, rule, index, spec.function),
            self,
            self._clock,
        )

    def _make_action(self, spec: ActionSpec) -> Action | None:
        try:
            return make_action(spec, self._services)
        except (RuleError, ActionError, OSError) as exc:
            return BrokenAction(str(exc))

    def _resume_lanes(self, checkpoint: Checkpoint, places: Places) -> None:
        for key, lane_places in checkpoint.behind.items():
            lane = self._lane(key)
            if lane is None:
                logger.warning(
                    "an action that was behind is no more",
                    extra={"fields": {"rule": key.rule, "action": key.action}},
                )
                continue
            lane.resume_from({p: lane_places.get(p) or place for p, place in places.items()})

    def _lane(self, key: LaneKey) -> Lane | None:
        if self._definitions.is_deleted(key.tenant, key.rule):
            return None
        specs = self._definitions.find(key.tenant, key.rule, key.version)
        if specs is None or key.action >= len(specs):
            return None
        group = rule_record_key(key.tenant, key.rule), str(key.version).encode()
        if group not in self._lanes:
            made = [
                self._make_lane(key.tenant, key.rule, key.version, index, spec)
                for index, spec in enumerate(specs)
            ]
            self._lanes[group] = tuple(lane for lane in made if lane is not None)
        return next((lane for lane in self._lanes[group] if lane.key == key), None)

    def _all_lanes(self) -> list[Lane]:
        return [lane for lanes in self._lanes.values() for lane in lanes]

    def _take_deletion(self, rule: RuleKey) -> None:
        record_key = rule_record_key(*rule)
        for group in [group for group in self._lanes if group[0] == record_key]:
            for lane in self._lanes.pop(group):
                self._close_lane(lane, drop=True)
        self._metrics.forget(*rule)

    def _take_definition(self, rule: RuleKey) -> None:
        """Ask again for what was not known so far."""
        record_key = rule_record_key(*rule)
        for group in [g for g, lanes in self._lanes.items() if g[0] == record_key and not lanes]:
            del self._lanes[group]

    def _close_lane(self, lane: Lane, *, drop: bool) -> None:
        async def close() -> None:
            before = lane.counters.dropped
            await lane.close(drop=drop)
            self._metrics.add_to_past({"dropped": lane.counters.dropped - before})

        task = self._loop.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _close_unused_lanes(self) -> None:
        before = self._clock.monotonic() - UNUSED_LANE_SECONDS
        for group, lanes in list(self._lanes.items()):
            if all(lane.is_idle and lane.used_at < before for lane in lanes):
                del self._lanes[group]
                for lane in lanes:
                    self._close_lane(lane, drop=False)

    # What follows is of checkpoints and metrics.

    async def _write_checkpoints(self) -> None:
        while True:
            try:
                ends = await asyncio.to_thread(self._admin.ends, INBOUND)
                self._answered_at = self._clock.monotonic()
                if self._is_recovered:
                    self._services.published.clear()
                    self._published_from.note(ends, self._progress.frontier())
                older_than = self._clock.monotonic() - self._settings.patience_seconds
                for lane in self._all_lanes():
                    lane.detach(older_than)
                await self._checkpoint()
            except LogError as exc:
                logger.warning("no checkpoint", extra={"fields": {"reason": str(exc)}})
            self._close_unused_lanes()
            await asyncio.sleep(self._settings.checkpoint_seconds)

    async def _checkpoint(self, *, is_clean: bool = False) -> None:
        done = self._progress.done()
        behind = {
            lane.key: places
            for lane in self._all_lanes()
            if (places := lane.places(done)) is not None
        }
        value = encode_checkpoint(
            Checkpoint(done, behind, self._published_from.before(done), is_clean)
        )
        now = self._clock.monotonic()
        if value == self._written and now - self._written_at < IDLE_CHECKPOINT_SECONDS:
            return
        record = Append(RUNNER, CHECKPOINT_KEY, value, [], self._clock.now_ms())
        for error in (await self._target.append([record])).values():
            raise error
        self._written, self._written_at = value, now

    def _read_checkpoint(self) -> tuple[Checkpoint | None, int]:
        """Return the last checkpoint and when it was written."""
        begins, ends = self._admin.begins(RUNNER), self._admin.ends(RUNNER)
        reader = StretchReader(self._options)
        found: list[tuple[bytes, int]] = []

        def take(message: Message) -> bool:
            value = message.value()
            if message.key() == CHECKPOINT_KEY and value is not None:
                found[:] = [(value, message.timestamp()[1])]
            return False

        try:
            reader.read(RUNNER, begins, ends, take, max_records=1, max_bytes=1)
        finally:
            reader.close()
        if not found:
            return None, 0
        return decode_checkpoint(found[0][0]), found[0][1]

    def _find_published(self, begins: Mapping[int, int], written_ms: int) -> set[bytes]:
        """Return what the last run has published since a place in `mqlake.inbound`."""
        ends = self._admin.ends_before(INBOUND, written_ms + PUBLISHED_MARGIN_MS)
        found: set[bytes] = set()

        def take(message: Message) -> bool:
            headers: Any = message.headers()
            names = dict(headers or ())
            if HEADER_CHAIN in names and (action_id := names.get(HEADER_OUTPUT)) is not None:
                found.add(action_id)
            return False

        reader = StretchReader(self._options)
        begun = time.monotonic()
        try:
            positions = {p: begins.get(p, 0) for p in ends}
            reader.read(INBOUND, positions, ends, take, max_records=1, max_bytes=1)
        finally:
            reader.close()
        fields = {"found": len(found), "seconds": round(time.monotonic() - begun, 2)}
        logger.info("looked for what was published already", extra={"fields": fields})
        return found

    async def _write_metrics(self) -> None:
        while True:
            for error in (await self._target.append(self._changed_metrics())).values():
                logger.warning("no metrics", extra={"fields": {"reason": str(error)}})
                break
            await asyncio.sleep(METRICS_SECONDS)

    def _changed_metrics(self) -> list[Append]:
        self._metrics.begin_moment()
        for lane in self._all_lanes():
            lane.count()
        return self._metrics.changed()


def _is_repeated(output: Output, marks: dict[str, Any]) -> bool:
    """Tell whether an output is one that came before."""
    last = marks.get(output.position.source)
    return last is not None and output.mark <= last


def _ignore_loss(_partition: int, _first: int, _end: int) -> None:
    """Compaction leaves gaps in `mqlake.rules`."""
