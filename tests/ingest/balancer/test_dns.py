"""Nodes from DNS, asked of a small name server on real sockets."""

import pytest

from ingest.balancer.discovery import dns
from ingest.balancer.discovery.dns import DnsSource, Resolver
from ingest.balancer.discovery.dns_messages import DnsError, RecordType, decode_answer, encode_query
from tests.ingest.balancer.dns_server import DnsServer

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
        answer = await Resolver([server.place]).ask("many.test", RecordType.A)
        assert len(answer.addresses) == 100
        assert server.asked["tcp"] == 1


async def test_a_name_that_there_is_not_has_no_nodes() -> None:
    async with DnsServer().served() as server:
        source = DnsSource(Resolver([server.place]), "nobody.test", "address", 1883)
        assert await source.find() == []


async def test_a_server_that_fails_says_nothing_of_nodes() -> None:
    async with DnsServer().served() as server:
        server.code = 2
        source = DnsSource(Resolver([server.place]), "mqtt.test", "address", 1883)
        with pytest.raises(DnsError, match="code 2"):
            await source.find()


async def test_the_next_server_is_asked_when_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "ATTEMPT_SECONDS", 0.05)
    async with DnsServer().served() as silent, DnsServer().served() as server:
        silent.silent = True
        server.host("mqtt.test", "127.0.0.1")
        answer = await Resolver([silent.place, server.place]).ask("mqtt.test", RecordType.A)
        assert answer.addresses == ("127.0.0.1",)
        with pytest.raises(DnsError, match="does not answer"):
            await Resolver([silent.place]).ask("mqtt.test", RecordType.A)


@pytest.mark.parametrize("cut", range(12, 46))
def test_an_answer_that_is_cut_is_refused(cut: int) -> None:
    server = DnsServer()
    server.host("a.test", "127.0.0.1")
    query = encode_query(7, "a.test", RecordType.A)
    whole = server.answer(query, 512)
    assert decode_answer(whole, 7).addresses == ("127.0.0.1",)
    if cut < len(whole):
        with pytest.raises(DnsError):
            decode_answer(whole[:cut], 7)


def test_a_name_that_points_at_itself_is_refused() -> None:
    header = bytes.fromhex("000781800000000100000000")
    with pytest.raises(DnsError, match="too many labels"):
        decode_answer(header + b"\xc0\x0c" + bytes(10), 7)


def test_a_label_too_long_is_refused() -> None:
    with pytest.raises(DnsError, match="64 bytes"):
        encode_query(1, "a" * 64 + ".test", RecordType.A)
