"""Nodes from `mqlake.gateways`: each gateway writes its state there twice a second."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ingest.balancer.fleet import Node
from mqlake.errors import InvalidRecord
from mqlake.log.contract import BEGINNING
from mqlake.records.gateway_heartbeat import SERVING, GatewayHeartbeat, decode_gateway_heartbeat
from mqlake.records.messages import GATEWAYS, NO_GATEWAY
from mqlake.records.versions import check_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqlake.clock import Clock
    from mqlake.errors import LogError
    from mqlake.log.contract import LogReader
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)

_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - it is not bound, but replaced


class GatewaySource:
    """Follows the log topic.

    A gateway is gone when it says so, or is silent for its lease by our own clock. While the log is
    away no gateway is heard, and none is gone for that.

    Args:
        reader: Not started yet.
        clock: Its times count.
        lease_seconds: As of the gateways.
        on_change: Called when a gateway says something new; silence is to be asked for.
        host: Host name of a gateway that listens on all addresses, with `{name}` in it.
        metrics_url: URL of each gateway's metrics, with `{address}` and `{name}` in it; empty: as
            it says itself.
    """

    def __init__(
        self,
        reader: LogReader,
        clock: Clock,
        lease_seconds: float,
        on_change: Callable[[], None],
        host: str = "{name}",
        metrics_url: str = "",
    ) -> None:
        self._host = host
        self._reader = reader
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._on_change = on_change
        self._metrics_url = metrics_url
        self._heard: dict[str, tuple[Node, float]] = {}
        self._end = 0
        self._next = 0

    async def open(self) -> None:
        """Begin to follow.

        Raises:
            LogError: The log cannot be read.
        """
        self._end = (await self._reader.end_offsets(GATEWAYS))[0]
        started = await self._reader.start(GATEWAYS, {0: BEGINNING}, self._receive, self._report)
        self._next = started[0]

    async def close(self) -> None:
        await self._reader.close()

    @property
    def is_read(self) -> bool:
        """Tell whether all is known that was said before this process began to listen."""
        return self._next >= self._end

    def nodes(self) -> list[Node]:
        """Return the gateways that are there."""
        # Time goes on only while anybody is heard.
        until = max((at for _, at in self._heard.values()), default=0.0)
        return [node for node, at in self._heard.values() if until - at < self._lease_seconds]

    def _receive(self, records: list[LogRecord]) -> None:
        now = self._clock.monotonic()
        is_changed = False
        for record in records:
            self._next = record.offset + 1
            if (record.key or b"").startswith(NO_GATEWAY):
                continue
            name = (record.key or b"").decode(errors="replace")
            try:
                said = None if record.value is None else decode_gateway_heartbeat(record.value)
                # One that is retired has no listeners any more.
                node = None if said is None or not said.listeners else self._read(name, said)
            except (InvalidRecord, ValueError) as exc:
                fields = {"gateway": name, "reason": repr(exc)}
                logger.warning("gateway record ignored", extra={"fields": fields})
                continue
            if node is None:
                is_changed |= self._heard.pop(name, None) is not None
                continue
            before = self._heard.get(name)
            is_changed |= before is None or before[0] != node
            # Also records from before this process listened: a gateway that is gone writes no more.
            self._heard[name] = (node, now)
        if is_changed:
            self._on_change()

    def _report(self, error: LogError) -> None:
        logger.warning(
            "heartbeats of gateways cannot be read", extra={"fields": {"reason": str(error)}}
        )

    def _read(self, name: str, found: GatewayHeartbeat) -> Node:
        check_version(found.v, "gateway record")
        ports: dict[str, int] = {}
        host = ""
        for url in found.listeners:
            parts = urlsplit(url)
            if parts.port is None:
                continue  # a Unix socket
            ports.setdefault(parts.scheme, parts.port)
            host = host or parts.hostname or _EVERYWHERE[0]
        if not host:
            raise ValueError("it listens nowhere")
        if host in _EVERYWHERE:
            host = self._host.format(name=name)
        metrics_url = self._metrics_url.format(address=host, name=name)
        if not metrics_url and found.metrics_port:
            at = f"[{host}]" if ":" in host else host
            metrics_url = f"http://{at}:{found.metrics_port}/metrics"
        return Node(
            name,
            host,
            tuple(sorted(ports.items())),
            metrics_url,
            serves=found.state == SERVING,
            overload_level=found.overload,
            is_gateway=True,
        )
