"""Drains: a node's clients go elsewhere, a number each second, and not before proxies know.

First the node takes no new clients, then all proxies have that, then clients go. A gateway lets
them go itself: 5.0 clients learn where to, 3.x connections are closed, and nothing that it has
acknowledged is lost. Of other nodes the proxies close the connections.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingest.balancer.haproxy.runtime_api import ProxyError
from mqlake.errors import LogError
from mqlake.records.messages import CONTROL_KEY_PREFIX, delivery_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.balancer.fleet import Node
    from ingest.balancer.haproxy.driver import Driver
    from mqlake.log.contract import LogAccess

logger = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 60.0
"""Proxies that do not know of it after so long end the drain: clients would come back."""
STEP_SECONDS: Final = 0.5


@dataclass(slots=True)
class _Drain:
    node: str
    state: str = "proxies are told"
    closed: int = 0
    task: asyncio.Task[None] | None = None


class Drains:
    """The drains that are under way or were.

    Args:
        drivers: Drivers of all proxies.
        log: Writer of requests to gateways; None: there are no gateways.
    """

    def __init__(self, drivers: Sequence[Driver], log: LogAccess | None) -> None:
        self._drivers = drivers
        self._log = log
        self._drains: dict[str, _Drain] = {}

    async def run(self) -> None:
        """Stay until cancelled, then stop drains under way."""
        try:
            await asyncio.Event().wait()
        finally:
            for drain in self._drains.values():
                if drain.task is not None:
                    drain.task.cancel()

    def begin(self, node: Node, slot: int | None, connections_per_second: float) -> None:
        """Let the clients of a node go; it takes no new ones already."""
        self._stop(node.name)
        drain = _Drain(node.name)
        self._drains[node.name] = drain
        drain.task = asyncio.create_task(self._work(drain, node, slot, connections_per_second))

    async def end(self, node: Node) -> None:
        """Let no more go.

        Raises:
            LogError: A gateway cannot be asked.
        """
        self._stop(node.name)
        # The gateway's last record may be older than the drain.
        is_asked = self._drains.pop(node.name, None) is not None
        if node.is_gateway and (is_asked or not node.serves):
            await self._ask(node.name, "serve", {})

    def describe(self) -> list[dict[str, Any]]:
        return [
            {"node": one.node, "state": one.state, "closed": one.closed}
            for one in self._drains.values()
        ]

    def _stop(self, name: str) -> None:
        drain = self._drains.get(name)
        if drain is not None and drain.task is not None:
            drain.task.cancel()

    async def _work(self, drain: _Drain, node: Node, slot: int | None, rate: float) -> None:
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await asyncio.gather(*(driver.settled() for driver in self._drivers))
        except TimeoutError:
            drain.state = "stopped: not all proxies know that the node takes no clients"
            logger.error("drain stopped", extra={"fields": {"node": node.name}})
            return
        try:
            if node.is_gateway:
                await self._ask(node.name, "drain", {"connections_per_second": rate})
                drain.state = "the gateway lets its clients go"
            elif slot is not None:
                drain.state = "proxies close connections"
                await self._close(drain, slot, rate)
                drain.state = "done"
        except (LogError, ProxyError) as exc:
            drain.state = f"stopped: {exc}"
            fields = {"node": node.name, "reason": str(exc)}
            logger.error("drain stopped", extra={"fields": fields})

    async def _close(self, drain: _Drain, slot: int, rate: float) -> None:
        """Close connections of a slot until there are none, by turns over the proxies."""
        due = 0.0
        while True:
            due += rate * STEP_SECONDS
            closed, left = 0, int(due)
            for driver in self._drivers:
                closed += await driver.close_sessions(slot, left - closed)
            due -= left
            drain.closed += closed
            if left and not closed:
                return
            await asyncio.sleep(STEP_SECONDS)

    async def _ask(self, gateway: str, action: str, value: dict[str, Any]) -> None:
        if self._log is None:
            raise LogError("there is no log to ask gateways by", definite=True)
        await self._log.writer.append_durably(
            delivery_topic(gateway),
            CONTROL_KEY_PREFIX + action.encode(),
            json.dumps(value).encode(),
            [],
            partition=0,
        )
