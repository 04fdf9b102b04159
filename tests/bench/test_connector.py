"""The connector against a broker that accepts, or does not."""

import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.load.connector import BenchLogins, Cycle, Names, hold_connections, run_cycles
from bench.load.programs import LoadPrograms
from ingest.protocol.primitives import encode_variable_byte_integer
from mqlake.errors import OperationalError

pytestmark = pytest.mark.programs

AN_HOUR = b"\x05\x11\0\0\x0e\x10"
"""Properties of a CONNECT of 5.0 whose session outlives its connection."""


class Broker(socketserver.ThreadingTCPServer):
    """Answers CONNECT and SUBSCRIBE, closes on DISCONNECT.

    Attributes:
        return_code: What CONNACK says.
        reason: And why, to clients of 5.0.
        protocols: How often each protocol name and level came.
        logins: User name and password, how often; without both of clients that had none.
        filters: Everything that was subscribed to.
        kept: How many sessions were to outlive their connections.
        most_open: How many connections there were at once.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 200

    def __init__(self, return_code: int = 0, reason: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.return_code = return_code
        self.reason = reason.encode()
        self.lock = threading.Lock()
        self.protocols: Counter[tuple[bytes, int]] = Counter()
        self.client_ids: set[bytes] = set()
        self.logins: Counter[tuple[bytes, ...]] = Counter()
        self.filters: list[bytes] = []
        self.kept = 0
        self.open = 0
        self.most_open = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Connection(socketserver.StreamRequestHandler):
    server: Broker
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with self.server.lock:
            self.server.open += 1
            self.server.most_open = max(self.server.most_open, self.server.open)
        while head := self.rfile.read(2):
            body = self.rfile.read(head[1])
            kind = head[0] >> 4
            if kind == 1:
                self._accept(body)
            elif kind == 8:
                with self.server.lock:
                    self.server.filters.append(body[body.index(b"bench") : -1])
                self.wfile.write(b"\x90\3" + body[:2] + body[-1:])
            elif kind == 14:
                break
        with self.server.lock:
            self.server.open -= 1

    def _accept(self, body: bytes) -> None:
        size = int.from_bytes(body[:2], "big")
        name, level = body[2 : 2 + size], body[2 + size]
        flags, has_login = body[3 + size] & 0x3F, body[3 + size] & 0xC0 == 0xC0
        assert flags in {0, 2}, "clean session, or nothing"
        assert int.from_bytes(body[4 + size : 6 + size], "big") > 0, "keep alive"
        rest = body[6 + size :]
        if level == 5:
            assert rest[: 1 + rest[0]] == (b"\0" if flags else AN_HOUR)
            rest = rest[1 + rest[0] :]
        client_id, *login = texts(rest)
        assert len(login) == (2 if has_login else 0)
        with self.server.lock:
            self.server.protocols[name, level] += 1
            self.server.client_ids.add(client_id)
            self.server.logins.update([tuple(login)])
            self.server.kept += not flags
        properties = b"\x21\0\x14" if level == 5 else b""
        if self.server.reason:
            length = len(self.server.reason).to_bytes(2, "big")
            properties = b"\x1f" + length + self.server.reason
        if level == 5:
            properties = encode_variable_byte_integer(len(properties)) + properties
        is_present = not flags and not self.server.return_code
        connack = bytes((is_present, self.server.return_code)) + properties
        self.wfile.write(b"\x20" + encode_variable_byte_integer(len(connack)) + connack)


def texts(data: bytes) -> list[bytes]:
    """Return the texts of which nothing but their lengths stands between them."""
    found = []
    while data:
        end = 2 + int.from_bytes(data[:2], "big")
        assert end <= len(data)
        found.append(data[2:end])
        data = data[end:]
    return found


@contextmanager
def running(broker: Broker) -> Iterator[list[str]]:
    thread = threading.Thread(target=broker.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield [broker.address]
    finally:
        broker.shutdown()
        thread.join()
        broker.server_close()


@pytest.fixture
def connector(programs: LoadPrograms) -> tuple[str, ...]:
    return programs.connector


def test_each_cycle_is_a_client_of_its_own(connector: tuple[str, ...]) -> None:
    broker = Broker()
    with running(broker) as addresses:
        done = run_cycles(connector, addresses, cycles=60, in_flight=7)
    assert done.cycles == done.connack_ms.count == len(broker.client_ids) == 60
    assert done.per_second == pytest.approx(60 / done.seconds, rel=0.1)
    assert broker.protocols == {(b"MQIsdp", 3): 20, (b"MQTT", 4): 20, (b"MQTT", 5): 20}
    assert max(len(client_id) for client_id in broker.client_ids) <= 23


def test_clients_come_again_by_their_names_and_subscribe(connector: tuple[str, ...]) -> None:
    broker = Broker()
    with running(broker) as addresses:
        names = Names("stored-", 3, 7)
        done = run_cycles(
            connector,
            addresses,
            cycles=30,
            in_flight=4,
            cycle=Cycle(keep=True, subscribe=True),
            names=names,
        )
    assert done.present == broker.kept == len(set(broker.filters)) == 30
    assert broker.client_ids == {b"stored-%d" % (3 + 7 * number) for number in range(30)}


def test_clients_log_in_as_one_user_after_the_other(connector: tuple[str, ...]) -> None:
    broker = Broker()
    with running(broker) as addresses:
        run_cycles(connector, addresses, cycles=30, in_flight=3, login=BenchLogins(3, "of all"))
    assert broker.logins == {(b"user-%d" % number, b"of all"): 10 for number in range(3)}
    assert sum(broker.protocols.values()) == len(broker.client_ids) == 30


def test_connections_are_held_until_the_end_of_the_block(connector: tuple[str, ...]) -> None:
    broker = Broker()
    with running(broker) as addresses:
        with hold_connections(connector, addresses, 40, in_flight=9) as held:
            assert broker.open == 40
            assert broker.filters == []
            held.subscribe()
            assert broker.open == len(set(broker.filters)) == 40
        assert broker.protocols == {(b"MQTT", 4): 40}
        assert broker.most_open == 40


def test_what_the_broker_refuses_is_one_sentence(connector: tuple[str, ...]) -> None:
    with (
        running(Broker(return_code=5)) as addresses,
        pytest.raises(OperationalError, match="CONNACK with return code 5"),
    ):
        run_cycles(connector, addresses, cycles=10)
    with (
        running(Broker(return_code=5)) as addresses,
        pytest.raises(OperationalError, match="CONNACK with return code 5"),
        hold_connections(connector, addresses, 3),
    ):
        pass
    with pytest.raises(OperationalError, match=r"connect to port 1\b"):
        run_cycles(connector, ["127.0.0.1:1"], cycles=10)


@pytest.mark.parametrize("length", [1, 20, 117, 122, 123, 126, 200])
def test_a_refusal_may_say_why(connector: tuple[str, ...], length: int) -> None:
    reason = "b" * length
    with (
        running(Broker(return_code=151, reason=reason)) as addresses,
        pytest.raises(OperationalError, match=rf"CONNACK with return code 151 \({reason}\)"),
    ):
        run_cycles(connector, addresses, cycles=1, cycle=Cycle(levels="5"))


def test_only_loopback_is_connected_to(connector: tuple[str, ...]) -> None:
    with pytest.raises(OperationalError, match="expected loopback"):
        run_cycles(connector, ["192.0.2.1:1883"], cycles=10)


def test_more_connections_than_open_files_is_one_sentence(programs: LoadPrograms) -> None:
    with pytest.raises(OperationalError, match=r"3000000 connections need \d+ open files"):
        run_cycles(programs.connector, ["127.0.0.1:1"], cycles=10, in_flight=3_000_000)
