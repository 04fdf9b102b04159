"""Clients with a place of their own, through real HAProxy: where they land, what a change moves."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingest.balancer.haproxy.commands import parse_map
from ingest.balancer.state_file import load_state
from ingest.balancer.talks import key_of
from mqlake.durable import write_durably
from tests.ingest.balancer.harness import (
    Broker,
    Haproxy,
    LiveClient,
    System,
    all_alive,
    brokers,
    connect_many,
    listed,
    quick_settings,
    running_plane,
    stopping,
    until,
)
from tests.ingest.gateway.harness import free_port

pytestmark = [pytest.mark.programs, pytest.mark.anyio]

GROUPS, SIZE = 9, 8
STRANGE = ("with space", "#", "é", "a/b", "x" * 200, "käse", "quote'\"", ";")


def members(group: int) -> list[str]:
    """Return client identifiers; those of group 0 have characters that maps do not take."""
    return [STRANGE[number] if group == 0 else f"client-{group}-{number}" for number in range(SIZE)]


def lines(groups: Iterable[Iterable[str]]) -> str:
    rows = ["tenant,client_id,rate,topic"]
    for number, group in enumerate(groups):
        rows.append(f"default,,10,group/{number}")
        for one in group:
            quoted = one.replace('"', '""')
            rows.append(f'default,"{quoted}",,group/{number}')
    return "\n".join(rows) + "\n"


@dataclass
class Placing:
    """A proxy before three brokers."""

    proxy: Haproxy
    port: int
    found: list[Broker]
    system: System
    loads: Path

    async def expect(self, groups: list[list[str]]) -> None:
        """Have the file say who is in which group; wait until the proxy places them so."""
        write_durably(self.loads, lines(groups).encode())
        wanted = {key_of("default", one) for group in groups for one in group}
        await until(lambda: dict(self.system.plane.snapshot.talkers).keys() == wanted)
        await until(self.system.at_rest)

    async def has_talkers(self) -> None:
        """Wait until the proxy's map is as the snapshot has it."""
        file = self.proxy.talkers_file

        async def look() -> bool:
            talkers = self.system.plane.snapshot.talkers
            found = parse_map(await self.proxy.api.ask(f"show map {file}"))
            return found == {key: f"s{slot}" for key, slot in talkers}

        await until(look)

    async def connect(self, names: list[str]) -> dict[str, LiveClient]:
        return await connect_many([self.port], names)


@pytest.fixture
async def placing(haproxy: str, mosquitto: str, tmp_path: Path) -> AsyncIterator[Placing]:
    port = free_port()
    proxy = Haproxy(haproxy, tmp_path)
    loads = tmp_path / "loads.csv"
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(brokers(mosquitto, tmp_path))
        settings = quick_settings(
            tmp_path,
            [proxy],
            strategy="predicted",
            nodes=listed(*found),
            predicted={"loads_file": loads},
            frontends=[{"name": "mqtt", "bind": f"127.0.0.1:{port}"}],
        )
        proxy.write(settings)
        stack.enter_context(stopping(proxy))
        await proxy.start()
        system = await stack.enter_async_context(running_plane(settings))
        await system.takes(*(broker.name for broker in found))
        yield Placing(proxy, port, found, system, loads)


GROUPED = [members(group) for group in range(GROUPS)]
EVERYBODY = [one for group in GROUPED for one in group]


def nodes_of(clients: dict[str, LiveClient], group: list[str]) -> set[str]:
    return {clients[one].node for one in group}


async def test_those_who_hear_the_same_land_at_one_node_and_nobody_is_cut(
    placing: Placing,
) -> None:
    before = await placing.connect(EVERYBODY)
    assert sum(len(nodes_of(before, group)) for group in GROUPED) > 1.5 * GROUPS
    await placing.expect(GROUPED)
    assert await all_alive(before)  # they come to their places when they connect next
    after = await placing.connect(EVERYBODY)
    assert [len(nodes_of(after, group)) for group in GROUPED] == [1] * GROUPS
    assert len({client.node for client in after.values()}) == 3


async def test_a_change_of_groups_or_nodes_cuts_nobody_and_moves_few(placing: Placing) -> None:
    await placing.expect(GROUPED)
    live = await placing.connect(EVERYBODY)
    gone = placing.found[0].name
    stayed = [one for one in EVERYBODY if live[one].node != gone]
    await placing.system.plane.drain(gone, 0.001)
    await placing.system.takes(*(broker.name for broker in placing.found[1:]))
    assert await all_alive({one: live[one] for one in stayed})
    # Each connection of a client takes that of before over, at its node alone.
    again = await placing.connect(EVERYBODY)
    assert all(again[one].node == live[one].node for one in stayed)
    assert gone not in {client.node for client in again.values()}
    assert [len(nodes_of(again, group)) for group in GROUPED] == [1] * GROUPS
    await placing.expect(GROUPED[:4])
    assert await all_alive(again)


async def test_a_proxy_that_lost_them_and_one_that_starts_anew_have_them_again(
    placing: Placing,
) -> None:
    await placing.expect(GROUPED)
    file = placing.proxy.talkers_file
    key = key_of("default", EVERYBODY[0])
    for command in (f"clear map {file}", f"set map {file} {key} s6", f"del map {file} {key}"):
        await placing.proxy.api.ask(command)
        await placing.has_talkers()
    await placing.proxy.reload()
    await placing.has_talkers()
    await placing.system.kill()
    remembered = load_state(placing.system.settings.state_file).snapshot
    assert remembered == placing.system.plane.snapshot
    # The files have them too: a proxy that starts anew needs nobody.
    placing.proxy.stop()
    await placing.proxy.start()
    await placing.has_talkers()
    async with running_plane(placing.system.settings) as system:
        await system.takes(*(broker.name for broker in placing.found))
        assert system.plane.snapshot.talkers == remembered.talkers
        assert system.plane.drivers[0].state.changes == 0


async def test_a_proxy_whose_configuration_has_no_such_map_is_named(placing: Placing) -> None:
    # The state file is written last: what else is written then overwrites nothing of ours.
    plane, before = placing.system.plane, placing.system.settings
    await until(lambda: load_state(before.state_file).snapshot == plane.snapshot)
    await placing.system.kill()
    text = placing.proxy.configuration.read_text()
    old = "\n".join(line for line in text.splitlines() if "txn.own" not in line)
    placing.proxy.configuration.write_text(old + "\n")
    await placing.proxy.reload()
    (proxy,) = before.proxies
    elsewhere = {"proxies": (proxy.model_copy(update={"configuration_file": None}),)}
    async with running_plane(before.model_copy(update=elsewhere)) as system:
        (driver,) = system.plane.drivers
        await until(lambda: "lacks map" in driver.state.problem)
        assert str(placing.proxy.talkers_file) in driver.state.problem
