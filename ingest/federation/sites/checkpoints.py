"""The checkpoints of a site's federator: how far it and its links have come with the log."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ingest.federation.sites.links.link import SiteLink
from ingest.federation.sites.retaining import Retaining
from ingest.federation.sites.spreading import Spreading
from ingest.federation.sites.taking import Taking
from mqlake.clock import Clock
from mqlake.errors import LogError, OperationalError
from mqlake.log.contract import LogAccess
from mqlake.log.growth import Growth
from mqlake.records.federation import (
    FEDERATION,
    KEY,
    RUN,
    FederationCheckpoint,
    Offsets,
    encode_checkpoint,
)
from mqlake.records.messages import INBOUND, LogRecord

_logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS: Final = 1.0
NOWHERE: Final = -1
FEW_GAPS: Final = 1_000
MANY_GAPS_SECONDS: Final = 10.0
"""More gaps than `FEW_GAPS` are written so seldom: the next run reads more of the log instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointParts:
    """Parts of a site whose state a checkpoint has.

    Attributes:
        links: Links of the site, by the identifiers of the neighbours.
        spreading: Has the interest.
        retaining: Has the retained messages.
        taking: Has the messages of other sites.
    """

    links: Mapping[int, SiteLink]
    spreading: Spreading
    retaining: Retaining
    taking: Taking


class SiteCheckpoints:
    """Writes a checkpoint once a second while something changes.

    Attributes:
        epoch: Epoch of the log.
        ends: Ends of the partitions of `mqlake.inbound`, as they were last seen.

    Args:
        site: Identifier of the site whose checkpoints these are.
        run: Time at which this run began, milliseconds UTC.
        log: Access to the site's log.
        clock: Clock that tells the age of the gaps written last.
        parts: Parts of the site whose state a checkpoint has.
        growth: Returns how the log grows; None: it does not.
        due: Event that the site sets when a checkpoint must not wait for its second.
    """

    def __init__(
        self,
        site: int,
        run: int,
        log: LogAccess,
        clock: Clock,
        parts: CheckpointParts,
        growth: Callable[[], Growth | None],
        due: asyncio.Event,
    ) -> None:
        self.epoch = 0
        self.ends: Mapping[int, int] = {}
        self._site = site
        self._run = run
        self._log = log
        self._clock = clock
        self._links = parts.links
        self._spreading = parts.spreading
        self._retaining = parts.retaining
        self._taking = parts.taking
        self._growth = growth
        self._due = due
        self._had: tuple[Offsets, list[Any]] = ({}, [])
        self._had_at = 0.0
        self._written = b""
        self._written_at = NOWHERE
        """Offset of the last checkpoint: no other process writes behind it."""
        self._unknown = 0
        """Checkpoints after that which the log may have or not: their reports did not come."""

    def begin(self, epoch: int, ends: Mapping[int, int]) -> None:
        """Go on from where the run before was."""
        self.epoch, self.ends = epoch, ends

    async def run(self) -> None:
        """Write until it is cancelled."""
        while True:
            # A site that wants something may be away when the next run begins: kept at once.
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECKPOINT_SECONDS):
                    await self._due.wait()
            self._due.clear()
            try:
                await self.write()
            except LogError as exc:
                # The next one says more; until then a new run repeats more.
                _logger.warning("no checkpoint", extra={"fields": {"reason": str(exc)}})

    async def write(self) -> None:
        """Write one, if it says something new.

        Raises:
            OperationalError: Another federator of the site writes, too.
        """
        inlet = self._taking.inlet
        begun = inlet.begun
        was_idle = not inlet.pending
        self.ends = await self._end_offsets()
        if was_idle and inlet.begun == begun:
            # Else the end may be behind a message of which the log has not said yet that it has it.
            for partition, end in self.ends.items():
                inlet.read[partition] = max(end, inlet.read.get(partition, 0))
        for link in self._links.values():
            link.see(self.ends, self._growth())
        self._taking.pass_on(self.ends, self.epoch)
        value = encode_checkpoint(self._checkpoint())
        if self._retaining.save() or value != self._written:
            headers = [(RUN, b"%d" % self._run)]
            self._unknown += 1
            _, offset = await self._log.writer.append_durably(FEDERATION, KEY, value, headers)
            before, self._written, self._written_at = self._written_at, value, offset
            if before not in (NOWHERE, offset - 1):
                await self._yield_to_newer(before + 1, offset)
            self._unknown = 0

    async def _end_offsets(self) -> Mapping[int, int]:
        reader = self._log.open_reader()
        try:
            return await reader.end_offsets(INBOUND)
        finally:
            await reader.close()

    def _checkpoint(self) -> FederationCheckpoint:
        inlet, now = self._taking.inlet, self._clock.monotonic()
        if inlet.streams.gaps <= FEW_GAPS or now > self._had_at + MANY_GAPS_SECONDS:
            self._had = (dict(inlet.read), inlet.streams.to_json())
            self._had_at = now
        return FederationCheckpoint(
            self.epoch,
            *self._had,
            {site: link.position for site, link in self._links.items()},
            self._spreading.interest.to_json(),
            self._retaining.retained.position,
        )

    async def _yield_to_newer(self, first: int, end: int) -> None:
        """Look for writers between two checkpoints; an older run ends when it does so itself.

        Raises:
            OperationalError: A newer one.
        """
        runs: list[int] = []

        async def take(records: list[LogRecord]) -> None:
            runs.extend(int(dict(one.headers).get(RUN, b"0")) for one in records)

        await self._log.ranges.read_range(FEDERATION, {0: (first, end)}, take)
        own = runs.count(self._run)
        if own >= self._unknown or any(run > self._run for run in runs):
            raise OperationalError(
                f"another federator of site {self._site} writes to this log: there must be one"
            )
