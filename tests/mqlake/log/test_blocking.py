"""The log for threads, on a real broker."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.log.kafka import running_kafka
from mqlake.errors import LogError
from mqlake.log.admin import LogAdmin, ensure_log_topics
from mqlake.log.blocking import Append, BlockingReader, BlockingWriter
from mqlake.log.contract import ANY_PARTITION, Missing
from mqlake.log.growth import Growth, encode_growth
from mqlake.log.partitioning import partition_of
from mqlake.records.messages import EVENTS, GATEWAYS, GROWTH_KEY, INBOUND, LogRecord

pytestmark = pytest.mark.kafka

PARTITIONS = 2


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A log of its own: it does not get smaller again."""
    with running_kafka(tmp_path_factory.mktemp("log")) as server:
        ensure_log_topics(
            server.bootstrap_servers,
            inbound_partitions=PARTITIONS,
            session_shards=1,
            retention_bytes=2**20,
            timeout_seconds=30,
        )
        yield server.bootstrap_servers


@pytest.fixture(scope="module")
def writer(servers: str) -> Iterator[BlockingWriter]:
    with BlockingWriter(servers, "test") as made:
        yield made


@pytest.fixture(scope="module")
def reader(servers: str) -> Iterator[BlockingReader]:
    with BlockingReader(servers, "test") as made:
        yield made


def read(
    reader: BlockingReader, log_topic: str, ranges: dict[int, tuple[int, int]], most: int = 10**9
) -> list[LogRecord]:
    found: list[LogRecord] = []

    def take(record: LogRecord) -> bool:
        found.append(record)
        return len(found) == most

    assert reader.read(log_topic, ranges, take) == []
    return found


def values(*texts: bytes, partition: int = 0) -> list[Append]:
    return [Append(partition, b"key", text, []) for text in texts]


def test_records_are_in_the_log_in_their_order(
    writer: BlockingWriter, reader: BlockingReader
) -> None:
    begin = reader.admin.ends(EVENTS)[0]
    records = [
        Append(0, b"key", b"one", [("name", b"value")], 1_000),
        Append(0, b"key", None, []),
        Append(ANY_PARTITION, b"other", b"three", []),
    ]
    assert writer.append_all(EVENTS, records, what="events") == [begin, begin + 1, begin + 2]
    found = read(reader, EVENTS, {0: (begin, begin + 3)})
    assert [(one.key, one.value) for one in found] == [
        (b"key", b"one"),
        (b"key", None),
        (b"other", b"three"),
    ]
    assert (found[0].headers, found[0].timestamp_ms) == ([("name", b"value")], 1_000)
    assert time.time() * 1000 - found[1].timestamp_ms < 60_000


def test_each_goes_to_its_log_topic(writer: BlockingWriter, reader: BlockingReader) -> None:
    before = {name: reader.admin.ends(name)[0] for name in (EVENTS, GATEWAYS)}
    (one,), (other,) = values(b"one"), values(b"other")
    offsets = writer.append_each([(EVENTS, one), (GATEWAYS, other)], what="both")
    assert offsets == [before[EVENTS], before[GATEWAYS]]


def test_no_records_are_no_work(writer: BlockingWriter) -> None:
    assert writer.append_all(EVENTS, [], what="nothing") == []


def test_more_than_the_queue_takes_wait_for_room(servers: str, reader: BlockingReader) -> None:
    begin = reader.admin.ends(EVENTS)[0]
    numbers = [b"%d" % number for number in range(1_000)]
    with BlockingWriter(servers, "test", max_queued_records=10) as small:
        offsets = small.append_all(EVENTS, values(*numbers), what="many")
    assert offsets == list(range(begin, begin + 1_000))
    assert [one.value for one in read(reader, EVENTS, {0: (begin, begin + 1_000)})] == numbers


def test_many_threads_append_at_once(writer: BlockingWriter, reader: BlockingReader) -> None:
    begin = reader.admin.ends(EVENTS)[0]
    with ThreadPoolExecutor(8) as threads:
        asked = [
            threads.submit(writer.append_all, EVENTS, values(b"%d" % one), what="it")
            for one in range(100)
        ]
        offsets = sorted(offset for one in asked for offset in one.result(30))
    assert offsets == list(range(begin, begin + 100))


def test_an_error_says_of_what_and_whether_it_may_be_there(writer: BlockingWriter) -> None:
    with pytest.raises(LogError, match=r"^a letter: appending") as refused:
        writer.append_all("mqlake.nowhere", values(b"x"), what="a letter")
    assert refused.value.definite
    with pytest.raises(LogError, match=r"^two letters: ") as refused:
        writer.append_each(
            [(EVENTS, values(b"there")[0]), ("mqlake.nowhere", values(b"not")[0])],
            what="two letters",
        )
    assert not refused.value.definite, "one of them is there"
    with pytest.raises(LogError, match=r"^a parcel: ") as refused:
        writer.append_all(EVENTS, values(bytes(9 * 2**20)), what="a parcel")
    assert refused.value.definite


def test_a_log_that_is_not_there_is_said_in_time() -> None:
    began = time.monotonic()
    with (
        BlockingWriter("127.0.0.1:1", "test", 0.2) as writer,
        pytest.raises(LogError, match="a letter: ") as refused,
    ):
        writer.append_all(EVENTS, values(b"x"), what="a letter")
    assert not refused.value.definite
    assert time.monotonic() - began < 10


def test_messages_go_where_growth_has_them(
    servers: str, writer: BlockingWriter, reader: BlockingReader
) -> None:
    keys = [b"default/%d" % number for number in range(40)]
    messages = [Append(ANY_PARTITION, key, b"", []) for key in keys]

    def places() -> list[list[bytes | None]]:
        begins = reader.admin.ends(INBOUND)
        writer.append_all(INBOUND, messages, what="messages")
        ends = reader.admin.ends(INBOUND)
        found = read(reader, INBOUND, {one: (begins[one], ends[one]) for one in ends})
        return [[one.key for one in found if one.partition == at] for at in range(len(ends))]

    def expected(count: int) -> list[list[bytes]]:
        return [[key for key in keys if partition_of(key, count) == at] for at in range(count)]

    assert places() == expected(PARTITIONS)
    assert writer.made_with() == PARTITIONS
    LogAdmin(servers).add_partitions(INBOUND, 6)
    assert places() == [*expected(PARTITIONS), [], [], [], []], "somebody else has added them"
    step = Append(0, GROWTH_KEY, encode_growth(Growth(PARTITIONS, 6).moved()), [])
    writer.append_all(GATEWAYS, [step], what="a step")
    deadline = time.monotonic() + 30
    while places() != expected(6):  # it is told of the step a moment later
        assert time.monotonic() < deadline
    assert writer.made_with() == PARTITIONS


def test_a_read_ends_when_it_is_enough(writer: BlockingWriter, reader: BlockingReader) -> None:
    begin = reader.admin.ends(EVENTS)[0]
    writer.append_all(EVENTS, values(*(b"%d" % one for one in range(100))), what="events")
    found = read(reader, EVENTS, {0: (begin, begin + 100)}, most=3)
    assert [one.value for one in found] == [b"0", b"1", b"2"]
    assert len(read(reader, EVENTS, {0: (begin, begin + 100)})) == 100
    assert read(reader, EVENTS, {0: (begin, begin)}) == []


def test_a_read_tells_of_what_is_gone_and_of_what_never_was(
    writer: BlockingWriter, reader: BlockingReader
) -> None:
    with pytest.raises(LogError, match="no partition 7"):
        reader.read(GATEWAYS, {7: (0, 1)}, lambda _: False)
    with pytest.raises(LogError, match="does not exist"):
        reader.read("mqlake.nowhere", {0: (0, 1)}, lambda _: False)
    begin = reader.admin.ends(EVENTS)[0]
    writer.append_all(EVENTS, values(b"1", b"2", b"3"), what="records")
    reader.admin.delete_before(EVENTS, {0: begin + 2})
    found: list[LogRecord] = []

    def take(record: LogRecord) -> bool:
        found.append(record)
        return False

    missing = reader.read(EVENTS, {0: (begin, begin + 3)}, take)
    assert missing == [Missing(0, begin, begin + 2)]
    assert [one.offset for one in found] == [begin + 2]


def test_a_mistake_of_the_consumer_is_raised(
    writer: BlockingWriter, reader: BlockingReader
) -> None:
    begin = reader.admin.ends(EVENTS)[0]
    writer.append_all(EVENTS, values(b"1"), what="a record")

    def fail(_: LogRecord) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        reader.read(EVENTS, {0: (begin, begin + 1)}, fail)
    assert len(read(reader, EVENTS, {0: (begin, begin + 1)})) == 1, "the reader goes on"


def test_a_client_that_is_closed_leaves_no_thread(servers: str) -> None:
    names = {"log appender", "log scan"}
    before = [one for one in threading.enumerate() if one.name in names]
    writer, reader = BlockingWriter(servers, "test"), BlockingReader(servers, "test")
    writer.append_all(EVENTS, values(b"x"), what="a record")
    assert len([one for one in threading.enumerate() if one.name in names]) == len(before) + 2
    for client in (writer, reader):
        client.close()
        client.close()
    assert [one for one in threading.enumerate() if one.name in names] == before
