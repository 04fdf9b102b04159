"""Nodes from DNS, asked of a small name server on real sockets."""

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from dns import asyncresolver
from dns.resolver import NXDOMAIN, NoResolverConfiguration

from ingest.balancer.discovery import dns
from ingest.balancer.discovery.dns import DnsError, DnsSource, Resolver
from tests.ingest.balancer.dns_server import DnsServer
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


async def test_addresses_of_a_name_are_nodes_ipv4_first() -> None:
    async with DnsServer().served() as server:
        server.host("mqtt.test", "::1", "127.0.0.9", "127.0.0.10")
        source = DnsSource(
            Resolver([server.place]), "mqtt.test", "address", 1884, "http://{address}/{name}"
        )
        nodes = await source.find()
        assert [(node.name, node.address, node.ports) for node in nodes] == [
            ("127.0.0.9:1884", "127.0.0.9", (("mqtt", 1884),)),
            ("127.0.0.10:1884", "127.0.0.10", (("mqtt", 1884),)),
            ("::1:1884", "::1", (("mqtt", 1884),)),
        ]
        assert nodes[2].metrics_url == "http://[::1]/::1"


async def test_services_of_the_first_priority_are_nodes() -> None:
    async with DnsServer().served() as server:
        server.ttl = 7
        server.service(
            "_mqtt._tcp.test", (1, 1883, "a.test"), (1, 1884, "b.test"), (2, 1, "c.test")
        )
        server.host("a.test", "127.0.0.1")
        server.host("b.test", "::1")
        server.host("c.test", "127.0.0.3")
        source = DnsSource(Resolver([server.place]), "_mqtt._tcp.test", "srv", 1)
        nodes = await source.find()
        assert [(node.name, node.address, node.ports) for node in nodes] == [
            ("a.test:1883", "127.0.0.1", (("mqtt", 1883),)),
            ("b.test:1884", "::1", (("mqtt", 1884),)),
        ]
        assert source.ttl_seconds == 7


async def test_an_answer_too_long_for_a_datagram_comes_over_tcp() -> None:
    async with DnsServer().served() as server:
        server.host("many.test", *(f"127.0.1.{number}" for number in range(1, 101)))
        records, _ = await Resolver([server.place]).ask("many.test", "A")
        assert len(records) == 100
        assert server.asked["tcp"] == 1


async def test_a_name_that_there_is_not_has_no_nodes() -> None:
    async with DnsServer().served() as server:
        source = DnsSource(Resolver([server.place]), "nobody.test", "address", 1883)
        assert await source.find() == []


async def test_a_server_that_fails_says_nothing_of_nodes() -> None:
    async with DnsServer().served() as server:
        server.code = 2
        source = DnsSource(Resolver([server.place]), "mqtt.test", "address", 1883)
        with pytest.raises(DnsError, match="SERVFAIL"):
            await source.find()


async def test_the_next_server_is_asked_when_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "ATTEMPT_SECONDS", 0.05)
    async with DnsServer().served() as silent, DnsServer().served() as server:
        silent.silent = True
        server.host("mqtt.test", "127.0.0.1")
        records, _ = await Resolver([silent.place, server.place]).ask("mqtt.test", "A")
        assert [record.address for record in records] == ["127.0.0.1"]
        with pytest.raises(DnsError, match="timed out"):
            await Resolver([silent.place]).ask("mqtt.test", "A")


async def test_an_answer_that_is_cut_or_points_at_itself_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dns, "ATTEMPT_SECONDS", 0.05)
    async with DnsServer().served() as server:
        server.host("a.test", "127.0.0.1")
        whole = server.answer
        spoilt: list[Callable[[bytes], bytes]] = [
            *(lambda data, cut=cut: data[:cut] for cut in (2, 12, 24, 30, 39)),
            # The name of the record is a pointer at itself.
            lambda data: data.replace(b"\xc0\x0c", bytes((0xC0, 12 + len("a.test") + 6))),
        ]
        for spoil in spoilt:
            monkeypatch.setattr(
                server, "answer", lambda query, most, spoil=spoil: spoil(whole(query, most))
            )
            with pytest.raises(DnsError, match=r"a\.test A"):
                await Resolver([server.place]).ask("a.test", "A")


@pytest.mark.parametrize("name", ["a" * 64 + ".test", "a..test", "\u00fc" * 64 + ".test"])
async def test_a_name_that_none_can_have_is_refused(name: str) -> None:
    with pytest.raises(DnsError, match="test A"):
        await Resolver(["127.0.0.1"]).ask(name, "A")


async def test_a_machine_without_a_name_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unset(*_: object) -> None:
        raise NoResolverConfiguration

    monkeypatch.setattr(asyncresolver.Resolver, "read_resolv_conf", unset)
    with pytest.raises(DnsError, match=r"a\.test A: All nameservers failed"):
        await Resolver().ask("a.test", "A")


async def test_a_service_at_no_host_is_no_node() -> None:
    async with DnsServer().served() as server:
        server.service("_mqtt._tcp.test", (0, 0, ""))
        assert await DnsSource(Resolver([server.place]), "_mqtt._tcp.test", "srv", 1).find() == []


async def test_who_is_cancelled_while_the_answer_comes_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a balancer that is told to stop asks on for ever."""
    resolver = Resolver(["127.0.0.1:53"])
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def resolve(*_: Any, **__: Any) -> Any:
        return await asyncio.wait_for(answer, 60)  # as dnspython waits for a datagram

    monkeypatch.setattr("dns.asyncresolver.Resolver.resolve", resolve)
    asking = asyncio.create_task(resolver.ask("a.test", "A"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    answer.set_exception(NXDOMAIN)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_who_is_cancelled_leaves_nobody_asking() -> None:
    """What still asks when its loop is closed has a socket that nobody closes."""
    loop = asyncio.get_running_loop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    async with DnsServer().served() as server:
        server.silent = True
        others = asyncio.all_tasks()
        asking = asyncio.create_task(Resolver([server.place]).ask("a.test", "A"))
        await until(lambda: server.asked["udp"])
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert asyncio.all_tasks() == others
    gc.collect()
    assert not problems
