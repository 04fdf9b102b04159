"""The process that carries out actions: settings in, exit code out."""

import asyncio
import contextlib
import logging
import secrets
import signal
import sys
from functools import partial
from typing import Final

import uvloop

from mqlake.clock import SystemClock
from mqlake.errors import MqlakeError, OperationalError
from mqlake.log.admin import LogAdmin
from mqlake.log.contract import LogAccess
from mqlake.log.following import following_growth
from mqlake.log.kafka_ranges import KafkaRangeReader
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.logs import set_up_logging
from mqlake.metrics.families import Families
from mqlake.metrics.server import MetricsServer
from mqlake.processes.heart import Heart, ProcessState
from mqlake.processes.log_disk import LogDisk
from mqlake.processes.tracing import Tracer, open_tracer
from mqlake.records.messages import RUNNER
from rules.runner.checkpoint import CONFIG
from rules.runner.cluster import KafkaCluster
from rules.runner.ownership import Ownership, hold_name
from rules.runner.runner import Runner
from rules.runner.settings import RulesSettings
from rules.runner.target import DELIVERY_TIMEOUT_SECONDS, KafkaTarget

logger = logging.getLogger(__name__)

SWITCH_SECONDS: Final = 0.000_5
"""How long a thread that reads outputs which an action missed may keep the event loop from running;
Python's default is ten times as much, and all of it latency."""


def main(settings: RulesSettings) -> int:
    """Run actions until SIGTERM or SIGINT; return the exit code."""
    set_up_logging(settings.log_level, settings.log_file, settings.log_format, settings.name)
    sys.setswitchinterval(SWITCH_SECONDS)
    failures: list[Exception] = []
    try:
        uvloop.run(_Process(settings).run())
    except* MqlakeError as errors:
        failures.extend(errors.exceptions)
    for failure in failures:
        logger.critical("actions stop: %s", failure)
    return 1 if failures else 0


class _Process:
    """One run of the process."""

    def __init__(self, settings: RulesSettings) -> None:
        self._settings = settings
        self._ended: asyncio.Future[str]
        self._runner: Runner | None = None
        self._waits_for = "the log"
        self._disk = LogDisk(settings.log_disk)

    async def run(self) -> None:
        """Run until a signal comes.

        Raises:
            MqlakeError: It cannot go on; started again it may.
        """
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, "")
        settings = self._settings
        heart = Heart(settings.name, settings.heartbeat_file)
        metrics = MetricsServer(settings.metrics, heart, self._add_metrics)
        beat = asyncio.create_task(heart.beat_on(self._state_now))
        work = asyncio.create_task(self._work())
        try:
            await asyncio.wait((work, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            beat.cancel()
            await asyncio.to_thread(metrics.close)
        if reason := self._ended.result() if self._ended.done() else "":
            raise OperationalError(reason)

    def _end(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)

    @property
    def _is_orderly(self) -> bool:
        return self._ended.done() and not self._ended.result()

    async def _work(self) -> None:
        settings = self._settings
        servers = settings.log.servers
        with hold_name(servers, settings.name):
            await self._take_part(servers)

    async def _take_part(self, servers: str) -> None:
        settings = self._settings
        admin = LogAdmin(servers)
        await asyncio.to_thread(admin.ensure, RUNNER, CONFIG)
        ownership = Ownership(servers, settings.name, RUNNER, self._end)
        cluster = KafkaCluster(servers, settings.name, DELIVERY_TIMEOUT_SECONDS)
        writer = cluster.open_writer()
        ranges = KafkaRangeReader(servers, client_id=settings.name)
        open_reader = partial(KafkaLogReader, servers, client_id=settings.name)
        log = LogAccess(writer, open_reader, ranges)
        target = KafkaTarget(writer, cluster, SystemClock(), self._disk)
        tracer = open_tracer(settings.tracing, settings.name)
        try:
            async with following_growth(writer, servers):
                self._waits_for = "another runner, which works"
                await ownership.acquire()
                await self._run_actions(log, admin, target, tracer)
        finally:
            # Another runner may look already for messages that this one has published.
            await target.close(5.0 if self._is_orderly else 0.0)
            await ranges.close()
            await ownership.close()
            if tracer is not None:
                await asyncio.to_thread(tracer.close)

    async def _run_actions(
        self, log: LogAccess, admin: LogAdmin, target: KafkaTarget, tracer: Tracer | None
    ) -> None:
        clock, incarnation = SystemClock(), secrets.token_hex(4)
        runner = Runner(self._settings, log, admin, target, clock, self._end, incarnation, tracer)
        try:
            await runner.start()
            self._runner = runner
            await runner.run()
        finally:
            await runner.close(is_orderly=self._is_orderly)

    def _add_metrics(self, families: Families) -> None:
        if self._runner is not None:
            self._runner.add_metrics(families)

    def _state_now(self) -> ProcessState:
        runner = self._runner
        healthy, detail = runner.health() if runner else (False, f"waits for {self._waits_for}")
        if problem := self._disk.why_full():
            detail += f"; what they append waits, the log is full: {problem}"
        return ProcessState(healthy, detail, runner.figures() if runner else {})
