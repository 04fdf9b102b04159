"""Keeps one HAProxy at the snapshot that is in force.

The proxy's state is read back after each change and every few seconds; the version that it runs
is that of the snapshot only when it has just that. So one that was restarted, reloaded or changed
by hand is brought back.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingest.balancer.haproxy.commands import (
    commands,
    is_as_wanted,
    map_commands,
    missing_slots,
    parse_map,
    parse_servers,
    sessions_of,
    wanted_servers,
)
from ingest.balancer.haproxy.configuration import maps_of
from ingest.balancer.haproxy.runtime_api import ProxyError, RuntimeApi
from mqlake.errors import InvalidRecord

if TYPE_CHECKING:
    from ingest.balancer.haproxy.configuration import Proxy, ProxyLayout
    from ingest.balancer.snapshot import Snapshot

logger = logging.getLogger(__name__)

_LINE_BYTES: Final = 4_000
"""Several commands are one line, which must fit into a buffer."""
Maps = dict[str, dict[str, str]]
"""Entries of each map, by its file."""
_NEW_VERSION: Final = re.compile(r"New version created: (\d+)")


@dataclass(slots=True)
class ProxyState:
    """State of one proxy, for people."""

    name: str
    version: str = ""
    """Version of the snapshot that it runs; empty: none that is known."""
    problem: str = "not asked yet"
    changes: int = 0
    """Commands that changed something."""
    repairs: int = 0
    """Times that it was found to differ from a version that it had."""


class Driver:
    """Drives one proxy.

    Args:
        layout: The declarations in its configuration.
        proxy: Which.
        repair_seconds: How often it is looked at.
    """

    def __init__(self, layout: ProxyLayout, proxy: Proxy, repair_seconds: float) -> None:
        self._layout = layout
        self._proxy = proxy
        self._repair_seconds = repair_seconds
        self._api = RuntimeApi(proxy.runtime_api)
        self._wanted: Snapshot | None = None
        self._maps: Maps = {}
        """That it is to have."""
        self._read: dict[str, tuple[dict[str, str], str]] = {}
        """By file: entries that it was found to have, and the answer that said so."""
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self.state = ProxyState(proxy.name)

    def follow(self, snapshot: Snapshot) -> None:
        """Bring the proxy to a snapshot, now and from now on."""
        if self._wanted is not None and self._wanted.version == snapshot.version:
            return
        self._wanted = snapshot
        self._maps = maps_of(self._layout, self._proxy, snapshot)
        self._settled.clear()
        self._changed.set()

    async def settled(self) -> None:
        """Wait until the proxy has the last snapshot; the caller sets the time for it."""
        await self._settled.wait()

    async def run(self) -> None:
        """Drive until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._repair_seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            if self._wanted is not None:
                await self._bring_to(self._wanted, self._maps)

    async def close_sessions(self, slot: int, most: int) -> int:
        """Cut some connections of a slot; return how many.

        Raises:
            ProxyError: The proxy does not answer.
        """
        servers = {f"{name}/s{slot}" for name, number in self._slots() if number == slot}
        sessions = sessions_of(await self._api.ask("show sess"), servers)[:most]
        for session in sessions:
            await self._api.ask(f"shutdown session {session}")
        return len(sessions)

    def _slots(self) -> list[tuple[str, int]]:
        return [] if self._wanted is None else list(wanted_servers(self._layout, self._wanted))

    async def _bring_to(self, snapshot: Snapshot, maps: Maps) -> None:
        state = self.state
        try:
            changes = await self._apply(snapshot, maps)
        except (ProxyError, InvalidRecord) as exc:
            if state.problem != str(exc):
                fields = {"proxy": state.name, "reason": str(exc)}
                logger.warning("proxy not at the snapshot", extra={"fields": fields})
            state.version, state.problem = "", str(exc)
            return
        if changes and state.version == snapshot.version:
            state.repairs += 1
            logger.warning(
                "proxy had drifted", extra={"fields": {"proxy": state.name, "changes": changes}}
            )
        state.changes += changes
        if state.version != snapshot.version:
            told = {"proxy": state.name, "version": snapshot.version, "changes": changes}
            logger.info("proxy at snapshot", extra={"fields": told})
        state.version, state.problem = snapshot.version, ""
        if self._wanted is snapshot:
            self._settled.set()

    async def _apply(self, snapshot: Snapshot, maps: Maps) -> int:
        """Return how many commands were needed."""
        wanted = wanted_servers(self._layout, snapshot)
        found = parse_servers(await self._api.ask("show servers state"))
        if lacking := missing_slots(self._layout, wanted, found):
            raise ProxyError(
                f"its configuration lacks {', '.join(lacking[:3])}: write it with "
                "`mqlake balancer configuration` and reload"
            )
        changes = 0
        if not any(server.is_ready for server in found.values()):
            # It has just begun: its first client is to find whole maps.
            changes += await self._apply_maps(maps)
        lines = list(commands(self._layout, wanted, found))
        for batch in _joined(lines):
            await self._api.ask(batch)
        if lines:
            found = parse_servers(await self._api.ask("show servers state"))
            if not is_as_wanted(wanted, found):
                raise ProxyError("it has not taken all changes")
        # Otherwise buckets lead to nodes when these are in their slots, not before.
        return changes + len(lines) + await self._apply_maps(maps)

    async def _apply_maps(self, maps: Maps) -> int:
        """Return how many maps had to be filled."""
        changed = [await self._apply_map(file, entries) for file, entries in maps.items()]
        return sum(changed)

    async def _apply_map(self, file: str, entries: dict[str, str]) -> bool:
        if await self._has_map(file, entries):
            return False
        answer = await self._api.ask(f"prepare map {file}")
        version = _NEW_VERSION.search(answer)
        if version is None:
            raise ProxyError(f"no new version of map {file}: {answer.strip()!r}")
        for command in map_commands(int(version[1]), file, entries):
            await self._api.ask(command)
        if not await self._has_map(file, entries):
            raise ProxyError(f"it has not taken map {file}")
        return True

    async def _has_map(self, file: str, entries: dict[str, str]) -> bool:
        answer = await self._api.ask(f"show map {file}")
        known, said = self._read.get(file, ({}, ""))
        if known is entries and said == answer:
            return True  # as it was: it is not read entry by entry every few seconds
        if answer.startswith("Unknown map"):
            raise ProxyError(
                f"its configuration lacks map {file}: write it with "
                "`mqlake balancer configuration` and reload"
            )
        if parse_map(answer) != entries:
            return False
        self._read[file] = (entries, answer)
        return True


def _joined(lines: list[str]) -> list[str]:
    batches = [""]
    for line in lines:
        if len(batches[-1]) + len(line) > _LINE_BYTES:
            batches.append("")
        batches[-1] += f"{line};"
    return [batch for batch in batches if batch]
