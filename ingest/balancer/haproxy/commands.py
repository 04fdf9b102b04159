"""From a proxy's servers to those of a snapshot: the commands of the Runtime API, as text."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from ingest.balancer.haproxy.configuration import NOWHERE, backend_of
from mqlake.errors import InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ingest.balancer.haproxy.configuration import ProxyLayout
    from ingest.balancer.snapshot import Snapshot

MAINTENANCE: Final = 0x01 | 0x02 | 0x20
"""Bits of `srv_admin_state`: forced, inherited, for want of an address."""
_DRAIN: Final = 0x08 | 0x10

MAP_LINES: Final = 500
"""Entries in one command, which must fit into a buffer."""


@dataclass(frozen=True, slots=True)
class ServerSlot:
    """A slot of one backend, as it is or as it is to be."""

    address: str
    port: int
    weight: int
    is_ready: bool


Servers = dict[tuple[str, int], ServerSlot]
"""By backend and slot."""


def wanted_servers(layout: ProxyLayout, snapshot: Snapshot) -> Servers:
    """Return the servers of all backends; free slots are left out, see `is_as_wanted`."""
    return {
        (backend_of(frontend), node.slot): ServerSlot(
            node.address, port, node.weight, node.takes_clients
        )
        for frontend in layout.frontends
        for node in snapshot.nodes
        if (port := frontend.port_of(node)) is not None
    }


def parse_servers(text: str) -> Servers:
    """Read the answer to `show servers state`.

    Raises:
        InvalidRecord: It is no such answer.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or lines[0].strip() != "1" or not lines[1].startswith("# "):
        raise InvalidRecord(f"expected the state of servers, got {text[:200]!r}")
    columns = lines[1][2:].split()
    found: Servers = {}
    try:
        for line in lines[2:]:
            row = dict(zip(columns, line.split(), strict=False))
            name = row["srv_name"]
            if not name.startswith("s") or not name[1:].isdecimal():
                continue
            is_ready = not int(row["srv_admin_state"]) & (MAINTENANCE | _DRAIN)
            found[row["be_name"], int(name[1:])] = ServerSlot(
                row["srv_addr"], int(row["srv_port"]), int(row["srv_uweight"]), is_ready
            )
    except (KeyError, ValueError) as exc:
        raise InvalidRecord(f"state of servers is malformed: {exc!r}") from exc
    return found


def missing_slots(layout: ProxyLayout, wanted: Servers, found: Servers) -> list[str]:
    """Return slots that the proxy's configuration lacks; then it is written again and reloaded."""
    backends = {backend for backend, _ in found}
    lacking = [
        backend_of(frontend)
        for frontend in layout.frontends
        if backend_of(frontend) not in backends
    ]
    return lacking + [f"{name}/s{slot}" for name, slot in wanted if (name, slot) not in found]


def commands(layout: ProxyLayout, wanted: Servers, found: Servers) -> Iterator[str]:
    """Yield the commands from one state to the other; none when it is the same.

    No new client comes to a server while its place changes. Live connections stay in all cases.
    """
    sticky = {backend_of(one) for one in layout.frontends if layout.sticks(one)}
    for (backend, slot), before in sorted(found.items()):
        server = f"{backend}/s{slot}"
        after = wanted.get((backend, slot))
        if after is None:
            if before.is_ready:
                yield f"set server {server} state maint"
            continue
        has_moved = not is_same_place(before, after)
        if before.is_ready and (has_moved or not after.is_ready):
            yield f"set server {server} state maint"
        if has_moved:
            yield f"set server {server} addr {after.address} port {after.port}"
            if backend in sticky and (before.address, before.port) != NOWHERE:
                # Clients of the node before are not to follow the slot's number to another one.
                yield f"clear table {backend} data.server_id eq {slot}"
        if before.weight != after.weight:
            yield f"set server {server} weight {after.weight}"
        if after.is_ready and (has_moved or not before.is_ready):
            yield f"set server {server} state ready"


def is_as_wanted(wanted: Servers, found: Servers) -> bool:
    """Tell whether a proxy has its wanted state; slots that are free may hold anything."""
    for key, server in found.items():
        after = wanted.get(key)
        if after is None:
            if server.is_ready:
                return False
        elif not (
            is_same_place(server, after)
            and (server.weight, server.is_ready) == (after.weight, after.is_ready)
        ):
            return False
    return wanted.keys() <= found.keys()


def is_same_place(one: ServerSlot, other: ServerSlot) -> bool:
    if one.port != other.port:
        return False
    try:
        return ip_address(one.address) == ip_address(other.address)
    except ValueError:
        return one.address == other.address


def map_commands(version: int, map_file: str, entries: Mapping[str, str]) -> Iterator[str]:
    """Yield the commands that fill a new version of a map, and put it in force at once."""
    lines = [f"{key} {slot}" for key, slot in entries.items()]
    for begin in range(0, len(lines), MAP_LINES):
        part = "\n".join(lines[begin : begin + MAP_LINES])
        yield f"add map @{version} {map_file} <<\n{part}\n"
    yield f"commit map @{version} {map_file}"


def parse_map(text: str) -> dict[str, str]:
    """Read the answer to `show map <file>`: lines of address, key and slot.

    Raises:
        InvalidRecord: It is no such answer.
    """
    found = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        words = line.split()
        if len(words) != 3 or not words[0].startswith("0x") or not words[2].startswith("s"):
            raise InvalidRecord(f"expected an entry of a map, got {line!r}")
        found[words[1]] = words[2]
    return found


def sessions_of(text: str, servers: set[str]) -> list[str]:
    """Return the identifiers of the sessions that `show sess` names for some servers."""
    found = []
    for line in text.splitlines():
        identifier, _, rest = line.partition(":")
        fields = dict(word.partition("=")[::2] for word in rest.split())
        if f"{fields.get('be')}/{fields.get('srv')}" in servers:
            found.append(identifier)
    return found
