"""One run of a gateway: the order in which its parts begin, its tasks, and its end.

    name ──► shards, routes, deliveries ──► own shards ──► retained messages ──► clients
                                                                                    │
    closed ◄── routes withdrawn ◄── sessions written ◄── clients hear ◄── stop ─────┘

A gateway that does not trust its state only closes its sockets: others settle the rest.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from mqlake.errors import (
    BatchNotTaken,
    InvalidRecord,
    LogError,
    NewerRecord,
    OffsetGone,
    OperationalError,
)
from mqlake.records.messages import ROUTES, Route, decode_route_key, delivery_topic
from mqlake.records.offsets import latest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.gateway.process.gateway import Gateway

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.25
"""How often the disk is looked at, subscriptions settle, wills and expiries are due."""

SHARDS_SECONDS: Final = 60.0
"""How long nothing may come while a starting gateway reads the shards that it is to own."""

RETAINED_SECONDS: Final = 600.0
"""How long it may take to read the retained messages that it has a copy of."""

LOOK_SECONDS: Final = 0.005

SHUTDOWN_SECONDS: Final = 5.0


class Process:
    """Owns the loop while a gateway runs.

    Args:
        gateway: Made, and not begun.
        stop: Ends it; the gateway was made with it.
    """

    def __init__(self, gateway: Gateway, stop: asyncio.Event) -> None:
        self._gateway = gateway
        self._stop = stop

    async def run(self) -> None:
        """Serve until `stop` is set, then end connections of clients and withdraw routes.

        Raises:
            LogError: The log cannot be reached at the start.
            OperationalError: The port cannot be opened.
        """
        gateway = self._gateway
        gateway.loop.set_exception_handler(self._report_bug)
        try:
            await self._begin()
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(work)
                    for work in (
                        gateway.routes.run(),
                        gateway.late_routes.run(),
                        gateway.advancing.run(),
                        gateway.lookup.run(),
                        gateway.resumer.run(),
                        gateway.histories.run(),
                        gateway.slow_clients.run(),
                        gateway.share_groups.run(),
                        self._tick(),
                        gateway.overload.run(),
                        gateway.draining.run(),
                    )
                ]
                try:
                    await self._listen()
                    await self._stop.wait()
                    await self._drain()
                    if gateway.ending.is_trusted:
                        await self._take_leave()
                    else:
                        self._close_connections()
                finally:
                    for task in running:
                        task.cancel()
            if gateway.ending.failure is not None:
                raise gateway.ending.failure
        finally:
            await self._close()

    async def _close(self) -> None:
        gateway = self._gateway
        gateway.listeners.stop_accepting()
        gateway.agent_check.close()
        gateway.tasks.close()
        gateway.context.events.flush()
        await gateway.chain.close()
        await gateway.reader.close()
        await gateway.shards.close()
        await gateway.retained_shards.close()
        await gateway.peers.close()
        await gateway.wanted_events.close()
        gateway.kept.close()
        if gateway.lake is not None:
            await gateway.lake.close()

    # The beginning

    async def _begin(self) -> None:
        gateway = self._gateway
        await gateway.growing.begin()
        await gateway.peers.open()
        await gateway.wanted_events.open()
        self.send_heartbeat()
        await gateway.shards.open()
        await self._open_deliveries()
        self.send_heartbeat()
        await self._own_shards()
        await gateway.growing.open()
        await self._load_retained()

    async def _open_deliveries(self) -> None:
        """Take deliveries from the first barriers on."""
        gateway = self._gateway
        await gateway.late_routes.begin()
        stale = self._own_routes(await gateway.reader.read_compacted(ROUTES))
        # From the end: no client of this run can be owed messages before its first barrier.
        log_topic = delivery_topic(gateway.settings.name)
        ends = await gateway.reader.end_offsets(log_topic)
        gateway.delivered.next = ends[0]
        await gateway.reader.start(
            log_topic, ends, gateway.delivery.receive_records, self._report_log_error
        )
        gateway.disk.look()
        starts = await gateway.routes.open(stale)
        gateway.publisher.acked[:] = starts
        marks = gateway.delivered.marks
        # The answer to the first barrier may be here already.
        marks[:] = latest(marks, [start - 1 for start in starts])

    def _own_routes(self, keys: Iterable[bytes]) -> list[Route]:
        """Return the routes that an earlier run of this gateway has left in the log."""
        routes = []
        for key in keys:
            try:
                route = decode_route_key(key)
            except InvalidRecord as exc:
                logger.warning("route ignored", extra={"fields": {"reason": str(exc)}})
                continue
            if route.gateway == self._gateway.settings.name:
                routes.append(route)
        return routes

    async def _own_shards(self) -> None:
        """Wait until this gateway owns the shards that it is to own.

        Raises:
            LogError: They could not be read in time.
        """
        shards, loop = self._gateway.shards, self._gateway.loop
        position, read_at = -1, loop.time()
        while not shards.is_settled:
            if shards.position != position:
                position, read_at = shards.position, loop.time()
            elif loop.time() - read_at > SHARDS_SECONDS:
                raise LogError(
                    f"the shards of this gateway were not read: nothing came for "
                    f"{SHARDS_SECONDS:.0f} s",
                    definite=True,
                )
            self.send_heartbeat()
            shards.tick()
            await asyncio.sleep(LOOK_SECONDS)
        # Sessions of an earlier run of this gateway are settled before its clients come.
        shards.tick()
        try:
            async with asyncio.timeout(SHARDS_SECONDS):
                await shards.finish()
        except TimeoutError:
            raise LogError(
                f"the shards of this gateway were not settled within {SHARDS_SECONDS:.0f} s",
                definite=True,
            ) from None

    async def _load_retained(self) -> None:
        """Wait until this gateway has copies of the retained messages that it is to have.

        Raises:
            LogError: They could not be read in time.
        """
        gateway = self._gateway
        try:
            async with asyncio.timeout(RETAINED_SECONDS):
                while not gateway.retained_shards.is_settled:
                    self.send_heartbeat()
                    gateway.shards.tick()
                    gateway.renewal.tick()
                    gateway.retained_shards.tick()
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise LogError(
                f"retained messages were not read within {RETAINED_SECONDS:.0f} s", definite=True
            ) from None

    async def _listen(self) -> None:
        gateway = self._gateway
        gateway.system_topics.process_due()
        await gateway.listeners.start(gateway.make_connection)
        await gateway.agent_check.open()
        gateway.status.problem = ""

    # While it serves

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self._do_what_is_due()
            except OperationalError as error:  # its store: only a new run reads again
                self._gateway.ending.fail(error)

    def _do_what_is_due(self) -> None:
        gateway = self._gateway
        gateway.disk.look()
        self.send_heartbeat()
        gateway.latencies.adjust()
        gateway.sessions.marks.save()
        gateway.delivery.settle()
        gateway.shards.tick()
        gateway.sessions.tick()
        gateway.retained_shards.tick()
        gateway.retained_questions.tick()
        gateway.renewal.tick()
        gateway.drops.record()
        gateway.denials.record()
        gateway.context.of_tenants.tell(gateway.shared_limits.connections_of)
        gateway.retained.purge()
        gateway.retained.save(gateway.delivered)
        gateway.system_topics.process_due()

    def send_heartbeat(self) -> None:
        """Say that this gateway is there, when it is time to."""
        gateway = self._gateway
        heartbeat = gateway.status.heartbeat()
        gateway.growing.add_to(heartbeat)
        gateway.peers.send_heartbeat(heartbeat)

    def _report_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an unexpected exception: the work that it interrupted is not done.

        After half a batch of the log, or when a store fails, this gateway ends: only a new run
        reads it again.
        """
        loop.default_exception_handler(context)
        error = context.get("exception")
        status = self._gateway.status
        status.bug = f"internal error, see the log: {error or context['message']}"
        if isinstance(error, BatchNotTaken | OperationalError):
            is_newer = isinstance(error.__cause__, NewerRecord)
            self._gateway.ending.fail(OperationalError(str(error) if is_newer else status.bug))

    def _report_log_error(self, error: LogError) -> None:
        logger.warning("deliveries cannot be read", extra={"fields": {"reason": str(error)}})
        if isinstance(error, OffsetGone):
            self._gateway.delivery.gone()

    # The end

    async def _drain(self) -> None:
        """Send clients to other gateways first, if it is to; until it is to end in any case."""
        gateway, seconds = self._gateway, self._gateway.settings.drain_seconds
        if not seconds or gateway.ending.failure is not None:
            return
        self._stop.clear()
        drained = asyncio.create_task(gateway.draining.over(seconds))
        told_again = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((drained, told_again), return_when=asyncio.FIRST_COMPLETED)
        finally:
            drained.cancel()
            told_again.cancel()

    def _close_connections(self) -> None:
        """Close all sockets, those that are being accepted just now too."""
        self._gateway.listeners.stop_accepting()
        self._gateway.connections.close_all()

    async def _take_leave(self) -> None:
        """Answer the clients' last packets, tell them, withdraw the routes."""
        gateway = self._gateway
        gateway.status.problem = "stopping"
        gateway.listeners.stop_accepting()
        gateway.connections.pause_all()
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await gateway.writer.flush(SHUTDOWN_SECONDS)
        except (TimeoutError, LogError) as exc:
            logger.warning(
                "the log did not take all records", extra={"fields": {"reason": str(exc)}}
            )
        self._close_connections()
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await self._settle()
        except (TimeoutError, LogError) as exc:  # another owner, or the next run, does the rest
            logger.warning(
                "some sessions are left to their next owner", extra={"fields": {"reason": str(exc)}}
            )
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await gateway.share_groups.close()
                gateway.peers.leave()
                await gateway.routes.close()
                gateway.context.events.flush()
                await gateway.writer.flush(SHUTDOWN_SECONDS)
                await gateway.connections.wait_closed()
        except (TimeoutError, LogError) as exc:
            logger.warning(
                "the last records were not all written", extra={"fields": {"reason": str(exc)}}
            )

    async def _settle(self) -> None:
        """Wait until the log has all sessions, and act on their last records."""
        gateway = self._gateway
        await self._are_saved()
        gateway.sessions.end_claims()
        await self._are_saved()
        await gateway.shards.finish()

    async def _are_saved(self) -> None:
        gateway = self._gateway
        while not (gateway.session_log.is_saved and gateway.share_log.is_saved):
            await gateway.writer.flush(SHUTDOWN_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)
