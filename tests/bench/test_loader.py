"""The loader against a broker small enough to be right; it loses, doubles, swaps on command."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.load.loader import Load, run_load
from bench.load.programs import LoadPrograms
from mqlake.errors import OperationalError
from tests.pace import within

pytestmark = pytest.mark.programs


class Broker(socketserver.ThreadingTCPServer):
    """Delivers to every subscriber whose filter begins like the topic; QoS 1 both ways.

    Attributes:
        fault: `lose`, `double` or `swap` is done once, to the 20th message.
        acknowledges: Whether PUBACK is sent at all.
        answers: Deliver below this topic what the first publisher publishes, as rules do.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 100

    def __init__(
        self,
        fault: str = "",
        *,
        acknowledges: bool = True,
        refuses: bool = False,
        answers: bytes = b"",
    ) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.fault = fault
        self.acknowledges = acknowledges
        self.refuses = refuses
        self.answers = answers
        self.lock = threading.Lock()
        self.subscribers: list[tuple[bytes, int, Connection]] = []
        self.connects: list[tuple[bytes, bool]] = []
        self.messages = 0
        self.kept: bytes | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def deliver(self, topic: bytes, message: bytes) -> None:
        with self.lock:
            self.messages += 1
            copies = [message]
            if self.messages == 20 and self.fault == "lose":
                copies = []
            elif self.messages == 20 and self.fault == "double":
                copies = [message, message]
            elif self.messages == 20 and self.fault == "swap":
                self.kept, copies = message, []
            elif self.kept is not None:
                copies, self.kept = [message, self.kept], None
            if self.answers:
                if not topic.endswith(b"/c0"):
                    return
                topic = self.answers + b"/" + topic.split(b"/")[-2] + b"/out"
            for prefix, _, subscriber in self.subscribers:
                if topic.startswith(prefix):
                    for copy in copies:
                        subscriber.send_message(copy)


class Connection(socketserver.StreamRequestHandler):
    server: Broker
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._packet_id = 0

    def handle(self) -> None:
        while first := self.rfile.read(1):
            body = self.rfile.read(self._length())
            kind = first[0] >> 4
            if kind == 1:
                with self.server.lock:
                    self.server.connects.append((body[12:], bool(body[7] & 2)))
                self.wfile.write(b"\x20\2\0\5" if self.server.refuses else b"\x20\2\0\0")
            elif kind == 8:
                topic_filter = body[4:-1]
                prefix = topic_filter[: -len(topic_filter.rpartition(b"/")[2])]
                with self.server.lock:
                    self.server.subscribers.append((prefix, body[-1], self))
                    self.wfile.write(b"\x90\3" + body[:2] + body[-1:])
            elif kind == 3:
                size = int.from_bytes(body[:2], "big")
                topic, packet_id = body[2 : 2 + size], body[2 + size : 4 + size]
                if self.server.acknowledges:
                    with self.server.lock:
                        self.wfile.write(b"\x40\2" + packet_id)
                self.server.deliver(topic, body[:2] + topic + b"%b" + body[4 + size :])
            elif kind == 14:
                return

    def send_message(self, message: bytes) -> None:
        self._packet_id = self._packet_id % 65_535 + 1
        body = message.replace(b"%b", self._packet_id.to_bytes(2, "big"), 1)
        assert len(body) < 128 * 128
        self.wfile.write(bytes((0x32, len(body) & 127 | 128, len(body) >> 7)) + body)

    def _length(self) -> int:
        length = shift = 0
        while True:
            byte = self.rfile.read(1)[0]
            length |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return length


@contextmanager
def running(broker: Broker) -> Iterator[str]:
    thread = threading.Thread(target=broker.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield broker.address
    finally:
        broker.shutdown()
        thread.join()
        broker.server_close()


@pytest.fixture
def loader(programs: LoadPrograms) -> tuple[str, ...]:
    return programs.loader


def load(address: str, **more: object) -> Load:
    options: dict[str, object] = {
        "publish_to": [address],
        "subscribe_to": [address],
        "publishers": 3,
        "subscribers": 2,
        "rate": 300.0,
        "seconds": 0.4,
        "warmup_seconds": 0.1,
        "drain_seconds": 60.0,  # it ends before when it is complete
    }
    return Load(**(options | more))  # type: ignore[arg-type]


def test_every_message_is_sent_at_its_time_and_counted(loader: tuple[str, ...]) -> None:
    with running(Broker()) as address:
        result = run_load(loader, load(address))
    # 300 a second for 0.5 s; while a machine stands still at the end none is sent any more.
    assert 30 < result.published == result.acknowledged <= 150
    assert result.expected == result.delivered == result.published
    assert result.is_complete
    assert result.ack_ms is not None
    assert result.delivery_ms is not None
    assert result.ack_ms.count == result.delivery_ms.count == result.published - 30
    assert result.ack_ms.p999 is not None
    assert 0 < result.ack_ms.p50 <= result.ack_ms.p95 <= result.ack_ms.p99 <= result.ack_ms.p999
    assert result.ack_ms.p999 <= result.ack_ms.max
    # 300 a second over 400 ms: never nothing, and not all at once.
    assert 3 <= result.longest_gap_ms <= 400
    assert result.suback_ms is None


def test_a_window_goes_on_when_messages_are_finished(loader: tuple[str, ...]) -> None:
    with running(Broker()) as address:
        for await_delivery in (False, True):
            result = run_load(
                loader, load(address, rate=0.0, window=5, await_delivery=await_delivery)
            )
            assert result.published > 15
            assert result.is_complete
            assert result.acknowledged_per_second > 0


def test_everyone_gets_everything_when_asked(loader: tuple[str, ...]) -> None:
    with running(Broker()) as address:
        result = run_load(loader, load(address, subscribers=20, everyone=True, rate=100.0))
    assert 0 < result.published <= 50
    assert result.expected == result.delivered == 20 * result.published
    assert result.is_complete


def test_a_window_counts_a_message_as_finished_when_everyone_has_it(
    loader: tuple[str, ...],
) -> None:
    with running(Broker()) as address:
        result = run_load(
            loader,
            load(address, subscribers=20, everyone=True, rate=0.0, window=2, await_delivery=True),
        )
    assert result.published > 6
    assert result.expected == result.delivered == 20 * result.published
    assert result.is_complete


@pytest.mark.parametrize("qos", [0, 1])
def test_subscriptions_ask_for_the_given_qos(loader: tuple[str, ...], qos: int) -> None:
    broker = Broker()
    with running(broker) as address:
        assert run_load(loader, load(address, subscribe_qos=qos)).is_complete
    assert {granted for _, granted, _ in broker.subscribers} == {qos}


def test_persistent_sessions_are_those_of_subscribers_and_end_with_the_run(
    loader: tuple[str, ...],
) -> None:
    broker = Broker()
    with running(broker) as address:
        assert run_load(loader, load(address, persistent=True)).is_complete
    clean: dict[bytes, list[bool]] = {}
    for client_id, is_clean in broker.connects:
        clean.setdefault(client_id, []).append(is_clean)
    assert sorted(clean.values()) == [[False, True], [False, True], [True], [True], [True]]


@pytest.mark.parametrize(
    ("fault", "lost", "duplicated", "out_of_order"),
    [("lose", 1, 0, 0), ("double", 0, 1, 0), ("swap", 0, 0, 1)],
)
def test_what_the_broker_does_wrong_is_counted(
    loader: tuple[str, ...], fault: str, lost: int, duplicated: int, out_of_order: int
) -> None:
    with running(Broker(fault)) as address:
        some = load(address, publishers=1, subscribers=1, drain_seconds=within(1))
        result = run_load(loader, some)
    assert (result.lost, result.duplicated, result.out_of_order) == (lost, duplicated, out_of_order)
    assert not result.is_complete


def test_messages_never_acknowledged_are_seen(loader: tuple[str, ...]) -> None:
    with running(Broker(acknowledges=False)) as address:
        result = run_load(loader, load(address, drain_seconds=0.3))
    assert result.acknowledged == 0
    assert result.ack_ms is None
    assert not result.is_complete


def test_large_payloads_arrive(loader: tuple[str, ...]) -> None:
    with running(Broker()) as address:
        result = run_load(loader, load(address, payload_bytes=10_000))
    assert result.is_complete


def test_what_rules_make_of_messages_is_measured(loader: tuple[str, ...]) -> None:
    broker = Broker(answers=b"answers")
    with running(broker) as address:
        asked = load(address, answers="answers", answered=1, payload_bytes=150, prefix="p")
        result = run_load(loader, asked)
    assert result.is_complete
    assert 0 < result.expected <= result.published // 3 + 1
    assert result.delivery_ms is not None
    filters = {prefix for prefix, _, _ in broker.subscribers}
    assert filters == {b"answers/0/", b"answers/1/"}


def test_subscriptions_are_timed_one_by_one(loader: tuple[str, ...]) -> None:
    with running(Broker()) as address:
        result = run_load(
            loader,
            Load(subscribe_to=[address], probes=25, probe_interval_seconds=0.001),
        )
    assert result.suback_ms is not None
    assert result.suback_ms.count == 25
    assert result.published == 0


def test_a_refused_connection_is_one_sentence(loader: tuple[str, ...]) -> None:
    with (
        running(Broker(refuses=True)) as address,
        pytest.raises(OperationalError, match="CONNACK with return code 5"),
    ):
        run_load(loader, load(address))
    with pytest.raises(OperationalError, match=r"connect to port 1\b"):
        run_load(loader, load("127.0.0.1:1"))


def test_only_loopback_is_loaded(loader: tuple[str, ...]) -> None:
    with pytest.raises(OperationalError, match="expected loopback"):
        run_load(loader, load("192.0.2.1:1883"))
