"""Writes about once a second where the runner stands, and reads where the last run stood."""

import asyncio
import logging
from typing import Final

from mqlake.clock import Clock
from mqlake.errors import LogError
from mqlake.log.admin import LogAdmin
from mqlake.log.contract import LogReader
from mqlake.records.messages import INBOUND, RUNNER
from rules.actions.contract import LogTarget, NewRecord
from rules.runner.checkpoint import (
    CHECKPOINT_KEY,
    Checkpoint,
    PublishedFrom,
    decode_checkpoint,
    encode_checkpoint,
)
from rules.runner.lane_registry import LaneRegistry
from rules.runner.progress import RunnerProgress
from rules.runner.recovery import Recovery
from rules.runner.settings import RulesSettings

logger = logging.getLogger(__name__)

IDLE_CHECKPOINT_SECONDS: Final = 10.0
"""A checkpoint is never older than this, and the interval, while the process runs."""


class RunnerCheckpoints:
    """The records of one runner.

    Args:
        settings: How often they are written, and how long an output may hold them up.
        admin: Asks the log where messages end.
        target: Appends to the log.
        clock: For intervals.
        lanes: Has the lanes, some of which have positions of their own.
    """

    def __init__(
        self,
        settings: RulesSettings,
        admin: LogAdmin,
        target: LogTarget,
        clock: Clock,
        lanes: LaneRegistry,
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._target = target
        self._clock = clock
        self._lanes = lanes
        self._progress = RunnerProgress({})
        self._published_from = PublishedFrom()
        self._written = b""
        self._written_at = 0.0
        self._answered_at = 0.0

    @property
    def silent_seconds(self) -> float:
        """How long the log has not answered."""
        return self._clock.monotonic() - self._answered_at

    async def read(self, reader: LogReader) -> Checkpoint | None:
        """Return the last checkpoint; None: no runner has run.

        Raises:
            LogError: The log does not answer.
            InvalidRecord: The checkpoint is of another version.
        """
        record = (await reader.read_compacted(RUNNER)).get(CHECKPOINT_KEY)
        if record is None or record.value is None:
            return None
        return decode_checkpoint(record.value)

    def begin(self, progress: RunnerProgress, published_from: dict[int, int]) -> None:
        """Go on from a checkpoint.

        Args:
            progress: Position of the stream from now on.
            published_from: Offsets of `mqlake.inbound` in the checkpoint.
        """
        self._progress = progress
        self._published_from.note(published_from, progress.frontier())

    async def run(self, recovery: Recovery) -> None:
        """Write one whenever something is new, until cancelled.

        Args:
            recovery: Looked after before each.
        """
        while True:
            try:
                ends = await asyncio.to_thread(self._admin.ends, INBOUND)
                self._answered_at = self._clock.monotonic()
                if recovery.look():
                    self._published_from.note(ends, self._progress.frontier())
                older_than = self._clock.monotonic() - self._settings.patience_seconds
                for lane in self._lanes.all():
                    lane.detach(older_than)
                await self.write()
            except LogError as exc:
                logger.warning("no checkpoint", extra={"fields": {"reason": str(exc)}})
            self._lanes.close_unused()
            await asyncio.sleep(self._settings.checkpoint_seconds)

    async def write(self, *, is_clean: bool = False) -> None:
        """Write one, unless it is the same as the last one.

        Raises:
            LogError: The log did not take it.
        """
        done = self._progress.done()
        behind = {
            lane.key: positions
            for lane in self._lanes.all()
            if (positions := lane.positions(done)) is not None
        }
        value = encode_checkpoint(
            Checkpoint(done, behind, self._published_from.before(done), is_clean)
        )
        now = self._clock.monotonic()
        if value == self._written and now - self._written_at < IDLE_CHECKPOINT_SECONDS:
            return
        record = NewRecord(RUNNER, CHECKPOINT_KEY, value, [], self._clock.now_ms())
        for error in (await self._target.append([record])).values():
            raise error
        self._written, self._written_at = value, now
