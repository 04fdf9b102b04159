"""From `mqlake.outputs` to the lanes: dispatch of outputs, recovery, and progress."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from mqlake.clock import Clock
from mqlake.errors import InvalidRecord, LogError
from mqlake.log.admin import LogAdmin
from mqlake.log.contract import BEGINNING, LogAccess
from mqlake.log.shorter import check_not_shorter
from mqlake.metrics.families import Families
from mqlake.processes.tracing import Tracer
from mqlake.records.messages import (
    ACCESS,
    HEADER_RULE,
    INBOUND,
    OUTPUTS,
    RULES,
    RUNNER,
    SKIPPED_KEY,
    LogRecord,
)
from mqlake.records.outputs import RERUN, Output, decode_output, rule_record_key
from mqlake.records.rule_facts import RuleKey
from rules.actions.contract import NewRecord, Work
from rules.metrics import RuleMetrics
from rules.prometheus import add_actions
from rules.runner import failures
from rules.runner.checkpoint import CONFIG, Checkpoint, LaneKey, ReadPosition, ReadPositions
from rules.runner.checkpoints import RunnerCheckpoints
from rules.runner.dead_letters import DeadLetters
from rules.runner.definitions import Definitions
from rules.runner.failures import FailureEvents
from rules.runner.lane_registry import LaneGroup, LaneRegistry
from rules.runner.lanes import Lane, LaneLimits, LaneMissed
from rules.runner.makers import KnownMakers
from rules.runner.outputs_log import find_published, read_outputs_range
from rules.runner.progress import Batch, Origin, RunnerProgress
from rules.runner.recovery import Recovery
from rules.runner.services import RunnerServices
from rules.runner.settings import RulesSettings
from rules.runner.target import KafkaTarget

logger = logging.getLogger(__name__)

METRICS_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 10.0
"""How long the log may not answer before the process says that it is not well."""
RULES_SECONDS: Final = 60.0


class Runner:
    """Runs the actions of all rules. Make it inside the event loop; keeps the contract `Stream`.

    Args:
        settings: Settings of the process.
        log: Log that has the outputs.
        admin: Asks the same log about its topics.
        target: Appends to it.
        clock: For latencies and patience.
        stop: Ends the process, with the reason.
        incarnation: Identifier of this run of the process.
        tracer: Makes spans of actions; without one there are none.
    """

    def __init__(
        self,
        settings: RulesSettings,
        log: LogAccess,
        admin: LogAdmin,
        target: KafkaTarget,
        clock: Clock,
        stop: Callable[[str], None],
        incarnation: str,
        tracer: Tracer | None = None,
    ) -> None:
        self._settings = settings
        self._target = target
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._services = RunnerServices(settings, target, clock, stop)
        self._ranges = log.ranges
        self._admin = admin
        self._definitions = Definitions(
            self._take_deletion, lambda rule: self._lanes.take_definition(rule)
        )
        self._makers = KnownMakers(admin, clock)
        self._rules_reader = log.open_reader()
        self._access_reader = log.open_reader()
        self._reader = log.open_reader()
        self._metrics = RuleMetrics(settings.name, incarnation)
        self._failures = FailureEvents(
            lambda tenant: self._definitions.is_read(tenant, failures.EVENT), clock
        )
        self._dead_letters = DeadLetters(target, self._failures)
        self._lanes = LaneRegistry(
            self._definitions,
            self._makers,
            self._services,
            LaneLimits(settings.max_queued_outputs, settings.max_queued_bytes),
            self._metrics,
            self,
            clock,
            tracer,
        )
        self._checkpoints = RunnerCheckpoints(settings, admin, target, clock, self._lanes)
        self._full: set[Lane] = set()
        self._progress = RunnerProgress({})
        self._recovery = Recovery({}, self._progress, self._services.published)
        self._is_started = False
        self._stalled: asyncio.Task[None] | None = None
        self._paused_records: list[LogRecord] = []
        self._reading = asyncio.Semaphore(settings.behind_readers)
        self.outputs = 0
        self.repeated = 0
        self.lost = 0
        self.malformed = 0

    async def start(self) -> None:
        """Go on where the last run has stopped.

        Raises:
            LogError: The log does not answer.
            InvalidRecord: The checkpoint is of another version.
            OperationalError: The log has lost outputs that the last run has seen.
        """
        await asyncio.to_thread(self._admin.ensure, RUNNER, CONFIG)
        # A maker who is not known when a row of his is sent is asked for then.
        await self._access_reader.start(ACCESS, {0: BEGINNING}, self._makers.apply, _log_problem)
        await self._read_definitions()
        checkpoint = await self._checkpoints.read(self._reader)
        ends = await asyncio.to_thread(self._admin.ends, OUTPUTS)
        if checkpoint is None:
            checkpoint = await self._first_checkpoint()
        reached = {partition: at.offset for partition, at in checkpoint.positions.items()}
        check_not_shorter("the runner", OUTPUTS, reached, ends)
        positions = {p: checkpoint.positions.get(p) or ReadPosition(0) for p in ends}
        self._progress = RunnerProgress(positions)
        if checkpoint.is_clean:
            ends = {p: positions[p].offset for p in ends}
        else:
            # To the end: the times of records are those of many clocks, and of none that we know.
            self._services.published = await find_published(
                self._ranges,
                checkpoint.published_from,
                await asyncio.to_thread(self._admin.ends, INBOUND),
            )
        self._recovery = Recovery(ends, self._progress, self._services.published)
        self._checkpoints.begin(self._progress, checkpoint.published_from)
        self._resume_lanes(checkpoint, positions)
        await self._reader.start(
            OUTPUTS,
            {p: at.offset for p, at in positions.items()},
            self._take_records,
            _log_problem,
        )
        self._is_started = True
        fields = {
            "behind": len(checkpoint.behind),
            "published": len(self._services.published),
            "clean": checkpoint.is_clean,
        }
        logger.info("actions run", extra={"fields": fields})

    async def _read_definitions(self) -> None:
        """Follow the rules, and wait until all present ones are known."""
        ends = await asyncio.to_thread(self._admin.ends, RULES)
        begins = await self._rules_reader.start(
            RULES, {0: BEGINNING}, self._definitions.apply, _log_problem
        )
        if begins[0] >= ends[0]:
            return
        try:
            async with asyncio.timeout(RULES_SECONDS):
                await self._definitions.wait_until(ends[0])
        except TimeoutError as exc:
            raise LogError(
                f"reading {RULES} took more than {RULES_SECONDS:g} s", definite=False
            ) from exc

    async def _first_checkpoint(self) -> Checkpoint:
        """Return where a runner begins that has never run."""
        begins = await asyncio.to_thread(self._admin.begins, OUTPUTS)
        inbound = await asyncio.to_thread(self._admin.begins, INBOUND)
        positions = {partition: ReadPosition(offset) for partition, offset in begins.items()}
        return Checkpoint(positions, {}, inbound, is_clean=True)

    async def run(self) -> None:
        """Write checkpoints and metrics until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._checkpoints.run(self._recovery))
            tasks.create_task(self._write_metrics())

    async def close(self, *, is_orderly: bool) -> None:
        """End everything.

        Args:
            is_orderly: Finish outputs under way, for a while, and note where the next run goes on.
                False when another runner may be at work already, or something went wrong.
        """
        await self._reader.close()
        await self._rules_reader.close()
        await self._access_reader.close()
        if self._stalled is not None:
            self._stalled.cancel()
            await asyncio.gather(self._stalled, return_exceptions=True)
        lanes = self._lanes.all()
        if is_orderly and self._is_started:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.drain_seconds):
                    await asyncio.gather(*(lane.drain() for lane in lanes if lane.behind is None))
            for lane in lanes:
                lane.detach(float("inf"))
            with suppress(LogError):
                await self._checkpoints.write(is_clean=self._progress.is_done)
                await self._target.append(self._changed_metrics())
        await self._lanes.close()
        await self._services.close()

    def health(self) -> tuple[bool, str]:
        """Tell whether actions are carried out, and the obstacle if not."""
        if self._checkpoints.silent_seconds > SILENT_SECONDS:
            return False, "the log does not answer"
        lanes = self._lanes.all()
        behind = sum(lane.behind is not None for lane in lanes)
        detail = f"runs {len(lanes)} actions"
        return True, f"{detail}, {behind} of them behind" if behind else detail

    def figures(self) -> dict[str, Any]:
        return {
            "outputs": self.outputs,
            "repeated": self.repeated,
            "lost": self.lost,
            "malformed": self.malformed,
            **self._metrics.totals(),
        }

    def add_metrics(self, families: Families) -> None:
        """Add metrics for Prometheus; from any thread."""
        add_actions(families, self._metrics)

    # Services for lanes

    def frontier(self) -> dict[int, int]:
        return self._progress.frontier()

    def snapshot(self) -> ReadPositions:
        return self._progress.snapshot()

    async def read_missed(
        self,
        key: LaneKey,
        positions: ReadPositions,
        ends: dict[int, int],
        *,
        outputs: int,
        bytes_: int,
    ) -> LaneMissed:
        record_key = rule_record_key(key.tenant, key.rule)
        version = str(key.version).encode()

        def is_wanted(record: LogRecord) -> bool:
            return record.key == record_key and (HEADER_RULE, version) in record.headers

        async with self._reading:
            found = await read_outputs_range(
                self._ranges,
                OUTPUTS,
                {p: at.offset for p, at in positions.items()},
                ends,
                is_wanted,
                max_records=outputs,
                max_bytes=bytes_,
            )
        marks = {p: dict(at.marks) for p, at in positions.items()}
        origins = {p: Origin(at.marks) for p, at in positions.items()}
        works: list[tuple[Work, Origin]] = []
        for record in found.records:
            output = self._decode(record)
            if output is None or _is_repeated(output, record.partition, marks[record.partition]):
                continue
            marks[record.partition][output.position.order(record.partition)] = output.mark
            works.append((self._work(output, key.action, record), origins[record.partition]))
        read_on = {p: ReadPosition(at, marks[p]) for p, at in found.positions.items()}
        return LaneMissed(works, read_on, found.lost)

    async def write_dead_letter(self, work: Work, function: str, error: str) -> None:
        await self._dead_letters.append(work, function, error)

    def has_room(self, lane: Lane) -> None:
        self._full.discard(lane)
        self._resume()

    # The stream

    def _take_records(self, records: list[LogRecord]) -> None:
        if self._stalled is not None:
            self._paused_records.extend(records)
            return
        try:
            self._hand_over(records)
        except Exception as exc:
            # The rest of them must not be passed over: the next run takes them again.
            logger.exception("outputs cannot be handed over")
            self._services.stop(f"outputs cannot be handed over: {exc!r}")

    def _hand_over(self, records: list[LogRecord]) -> None:
        """Give outputs to the lanes of their versions, as far as those are known."""
        partitions = self._progress.partitions
        lanes_by_group = self._lanes.lanes
        batches: dict[int, Batch] = {}
        touched: set[Lane] = set()
        for number, record in enumerate(records):
            progress = partitions[record.partition]
            batch = batches.get(record.partition)
            if batch is None:
                batch = batches[record.partition] = progress.begin()
            if record.key == SKIPPED_KEY:
                progress.next_offset = record.offset + 1
                continue
            if record.offset > progress.next_offset:
                self._note_gap(record, progress.next_offset)
            output = self._decode(record)
            if output is not None:
                group = record.key or b"", str(output.version).encode()
                lanes = lanes_by_group.get(group)
                if lanes is None:
                    lanes = self._lanes.make(output.tenant, output.rule, output.version)
                    if lanes is None:
                        self._stall(output, group, records[number:])
                        break
                if _is_repeated(output, record.partition, progress.marks):
                    self.repeated += 1
                else:
                    self.outputs += 1
                    # A lane that falls behind now takes a position before this output.
                    for lane in lanes:
                        lane.offer(self._work(output, lane.key.action, record), batch)
                        touched.add(lane)
                    progress.mark(output.position.order(record.partition), output.mark)
            progress.next_offset = record.offset + 1
        for partition, batch in batches.items():
            batch.close(partitions[partition].snapshot())
        self._pump(touched)

    def _pump(self, lanes: Iterable[Lane]) -> None:
        """Have lanes work, and read no further while one is full."""
        for lane in lanes:
            lane.pump()
            if lane.holds_up():
                self._full.add(lane)
        if self._full:
            self._reader.pause()

    def _note_gap(self, record: LogRecord, expected: int) -> None:
        """Count outputs that retention has taken before they were read; their rules are unknown."""
        self.lost += record.offset - expected
        fields = {"partition": record.partition, "first": expected, "end": record.offset}
        logger.error("the log no longer holds outputs", extra={"fields": fields})

    def _decode(self, record: LogRecord) -> Output | None:
        try:
            return decode_output(record.key or b"", record.value, record.headers)
        except InvalidRecord as exc:
            self.malformed += 1
            fields = {"partition": record.partition, "offset": record.offset, "reason": str(exc)}
            logger.warning("output not understood", extra={"fields": fields})
            return None

    def _work(self, output: Output, action: int, record: LogRecord) -> Work:
        recovered = self._recovery.concerns(record)
        return Work(output, action, record.partition, record.offset, recovered=recovered)

    def _stall(self, output: Output, group: LaneGroup, rest: list[LogRecord]) -> None:
        """Wait until the actions of a version are known; nothing overtakes its output."""
        self._reader.pause()
        self._stalled = self._loop.create_task(self._wait_for_lanes(output, group, rest))

    async def _wait_for_lanes(
        self, output: Output, group: LaneGroup, rest: list[LogRecord]
    ) -> None:
        if not await self._is_known(output):
            # The oldest versions go, and the rest of a deleted rule: their outputs have no actions.
            fields = {"rule": output.rule, "version": output.version}
            logger.warning("actions of an output are not known", extra={"fields": fields})
            self._lanes.lanes[group] = ()
        self._stalled = None
        paused, self._paused_records = self._paused_records, []
        self._take_records([*rest, *paused])
        self._resume()

    async def _is_known(self, output: Output) -> bool:
        """Wait for the actions of an output; tell whether there are any."""
        version = output.tenant, output.rule, output.version
        while await self._definitions.wait_for(*version) is None:
            # They are in the log before the output is, but may not be read yet: on a machine with
            # too much to do that takes longer than anybody would wait.
            try:
                ends = await asyncio.to_thread(self._admin.ends, RULES)
            except LogError as exc:
                logger.warning("rules cannot be read", extra={"fields": {"reason": str(exc)}})
                continue
            await self._definitions.wait_until(ends[0])
            return self._definitions.find(*version) is not None
        return True

    def _resume(self) -> None:
        if self._stalled is None and not self._full:
            self._reader.resume()

    # Lanes

    def _resume_lanes(self, checkpoint: Checkpoint, positions: ReadPositions) -> None:
        for key, lane_positions in checkpoint.behind.items():
            lane = self._lanes.find(key)
            if lane is None:
                logger.warning(
                    "an action that was behind is no more",
                    extra={"fields": {"rule": key.rule, "action": key.action}},
                )
                continue
            lane.resume_from({p: lane_positions.get(p) or at for p, at in positions.items()})

    def _take_deletion(self, rule: RuleKey) -> None:
        self._lanes.take_deletion(rule)
        self._metrics.forget(*rule)
        self._failures.forget(*rule)

    # Metrics

    async def _write_metrics(self) -> None:
        while True:
            for error in (await self._target.append(self._changed_metrics())).values():
                logger.warning("no metrics", extra={"fields": {"reason": str(error)}})
                break
            await asyncio.sleep(METRICS_SECONDS)

    def _changed_metrics(self) -> list[NewRecord]:
        self._metrics.begin_moment()
        for lane in self._lanes.all():
            lane.count()
        return self._metrics.changed()


def _is_repeated(output: Output, partition: int, marks: dict[str, Any]) -> bool:
    """Tell whether an output of a partition is one that came before."""
    if output.position.source == RERUN:
        return False
    last = marks.get(output.position.order(partition))
    return last is not None and output.mark <= last


def _log_problem(error: LogError) -> None:
    """Log an error of reading: the log is away, or no longer holds the records to read."""
    logger.error("reading the log", extra={"fields": {"reason": str(error)}})
