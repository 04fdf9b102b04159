"""A checkpoint of which nobody knows whether the log has it is taken for what it is: its own."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingest.federation.sites.checkpoints import CheckpointParts, SiteCheckpoints
from ingest.federation.sites.streams.inlet import Inlet
from ingest.federation.sites.streams.streams import Streams
from mqlake.clock import ManualClock
from mqlake.errors import LogError, OperationalError
from mqlake.log.contract import LogAccess
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryRangeReader
from mqlake.records.federation import FEDERATION, KEY, RUN, LinkPosition
from mqlake.records.messages import INBOUND

pytestmark = pytest.mark.anyio

OURS = 1_000


class Writer:
    """Its reports get lost: of each record it says what it is told to."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.outcomes: list[str] = []

    async def append_durably(
        self, log_topic: str, key: bytes, value: bytes, headers: Any, **_: Any
    ) -> tuple[int, int]:
        outcome = self.outcomes.pop(0)
        at = (0, -1) if outcome == "lost" else self.log.store(log_topic, key, value, headers, 0, 0)
        if outcome != "there":
            raise LogError("no answer", definite=False)
        return at


class Site:
    def __init__(self) -> None:
        self.log = log = MemoryLog()
        log.create(INBOUND, 1)
        log.create(FEDERATION, 1)
        self.writer = Writer(log)
        inlet = Inlet(Streams(), {})
        self.interest: dict[str, Any] = {}
        spreading = SimpleNamespace(interest=SimpleNamespace(to_json=lambda: dict(self.interest)))
        retained = SimpleNamespace(position=LinkPosition({}))
        retaining = SimpleNamespace(save=lambda: False, retained=retained)
        taking = SimpleNamespace(inlet=inlet, pass_on=lambda *_: None)
        access = LogAccess(
            cast("Any", self.writer), lambda: MemoryLogReader(log), MemoryRangeReader(log)
        )
        self.checkpoints = SiteCheckpoints(
            1,
            OURS,
            access,
            ManualClock(),
            CheckpointParts(
                links={},
                spreading=cast("Any", spreading),
                retaining=cast("Any", retaining),
                taking=cast("Any", taking),
            ),
            lambda: None,
            cast("Any", None),
        )

    async def write(self, outcome: str) -> None:
        self.interest["changed"] = len(self.interest) + len(self.log.records(FEDERATION))
        self.writer.outcomes.append(outcome)
        await self.checkpoints.write()

    def another_writes(self, run: int) -> None:
        self.log.store(FEDERATION, KEY, b"", [(RUN, b"%d" % run)], 0, 0)


@pytest.mark.parametrize(
    "outcomes", [["unknown"], ["lost"], ["unknown", "lost", "unknown"]], ids=str
)
async def test_a_run_does_not_take_its_own_checkpoint_for_anothers(outcomes: list[str]) -> None:
    site = Site()
    await site.write("there")
    for outcome in outcomes:
        with pytest.raises(LogError, match="no answer"):
            await site.write(outcome)
    await site.write("there")
    await site.write("there")


@pytest.mark.parametrize("run", [OURS, OURS + 1])
async def test_it_ends_when_another_writes_behind_one_that_is_unknown(run: int) -> None:
    site = Site()
    await site.write("there")
    with pytest.raises(LogError, match="no answer"):
        await site.write("unknown")
    site.another_writes(run)
    with pytest.raises(OperationalError, match="another federator of site 1"):
        await site.write("there")


async def test_what_was_unknown_once_excuses_nobody_later() -> None:
    site = Site()
    await site.write("there")
    with pytest.raises(LogError, match="no answer"):
        await site.write("lost")
    await site.write("there")
    site.another_writes(OURS)
    with pytest.raises(OperationalError, match="another federator of site 1"):
        await site.write("there")


async def test_an_older_run_ends_by_itself() -> None:
    site = Site()
    await site.write("there")
    site.another_writes(OURS - 1)
    await site.write("there")
