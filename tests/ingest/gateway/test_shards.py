"""How a gateway comes to know its shards: loaded one after the other, then followed."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest

from ingest.gateway.log.lease import Lease
from ingest.gateway.shards.shard_readers import ShardReaders
from ingest.gateway.shards.shards import Shards
from ingest.gateway.store.database import Database
from ingest.session.placement import place
from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records.messages import SESSIONS, LogRecord
from mqlake.records.sessions import SessionRecord, encode_session, session_key
from mqlake.records.shards import (
    OWNER_KEY,
    Run,
    encode_claim,
    encode_run,
    left_key,
    shard_of,
    stamp_headers,
)
from tests.ingest.gateway.harness import until

if TYPE_CHECKING:
    from ingest.gateway.peers.peers import Peers
    from ingest.gateway.shards.shard_acts import Actions
    from mqlake.log.contract import AppendCallback, LogReader, LogWriter, RecordsCallback

pytestmark = pytest.mark.anyio

SHARDS = 4
ME, OTHER = Run("gateway-1", "i1"), Run("gateway-2", "i2")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class HeldReader:
    """A reader that hands over what the test says."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.ends = ends
        self.hand_over: RecordsCallback = lambda _records: None
        self.followed: dict[int, int] = {}
        self.order: list[int] = []
        self.is_paused = False
        self.hurried = 0

    async def start(self, _topic: str, _from: Any, on_records: Any, _errors: Any) -> dict[int, int]:
        self.hand_over = on_records
        return {}

    async def follow(self, positions: Mapping[int, int]) -> dict[int, int]:
        starts = {number: max(0, start) for number, start in positions.items()}
        self.followed |= starts
        self.order += starts
        return starts

    def unfollow(self, partitions: Collection[int]) -> None:
        for number in partitions:
            del self.followed[number]

    def hurry(self) -> None:
        self.hurried += 1

    async def end_offsets(self, log_topic: str) -> dict[int, int]:
        assert log_topic == SESSIONS
        return dict(self.ends)

    async def partition_count(self, _log_topic: str) -> int:
        return SHARDS

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    async def close(self) -> None:
        pass


class KnownPeers:
    is_read = True

    def owners(self) -> list[str]:
        return [ME.gateway, OTHER.gateway]

    def log_now_ms(self) -> int:
        return 0

    def is_dead(self, _run: Run) -> bool:
        return False

    is_silent = is_spent = is_dead


class Written:
    def __init__(self) -> None:
        self.owned: list[int] = []
        self.left: list[int] = []
        self.reports: dict[int, AppendCallback] = {}
        self.is_failing = False

    async def append_durably(
        self, _topic: str, key: bytes, *_: Any, partition: int
    ) -> tuple[int, int]:
        if self.is_failing:
            raise LogError("not now", definite=True)
        if key == left_key(ME.gateway):
            self.left.append(partition)
        return partition, 0

    def append(self, _topic: str, key: bytes, *rest: Any, partition: int) -> None:
        if key == OWNER_KEY:
            self.owned.append(partition)
            self.reports[partition] = rest[-1]


class Bench:
    """The shards of one of two gateways, and the readers under them."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        clock = ManualClock()
        self.reader, self.standby, self.loader = (HeldReader(ends) for _ in range(3))
        self.writer = Written()
        lease = Lease(clock, 10, lambda: None)
        lease.renew(clock.monotonic(), clock.now_ms())
        self.shards = Shards(
            ME,
            SHARDS,
            cast("LogWriter", self.writer),
            ShardReaders(
                cast("LogReader", self.reader),
                cast("LogReader", self.standby),
                cast("LogReader", self.loader),
            ),
            Database(None),
            cast("Peers", KnownPeers()),
            lease,
            cast("Actions", None),
        )
        places = place(SHARDS, [ME.gateway, OTHER.gateway])
        self.mine = [number for number, one in enumerate(places) if one.owner == ME.gateway]
        self.others = [number for number in range(SHARDS) if number not in self.mine]

    async def load(self, number: int, records: list[LogRecord]) -> None:
        """Hand a shard over as soon as it is asked for."""
        await self.asked_for(number)
        self.loader.hand_over(records)

    async def asked_for(self, number: int) -> None:
        def is_asked_for() -> bool:
            self.shards.tick()
            return number in self.loader.followed

        await until(is_asked_for)


def a_session(number: int, offset: int, client: int = 0) -> LogRecord:
    """Return a record of a client in a shard."""
    names = (f"c{one}" for one in range(10_000) if shard_of("t", f"c{one}", SHARDS) == number)
    client_id = [name for name, _ in zip(names, range(client + 1), strict=False)][-1]
    session = SessionRecord(
        "0" * 16, "t", client_id, 4, None, 60, False, 60, "g", "i", False, 0, 0, "gone"
    )
    value = encode_session(session)
    return LogRecord(number, offset, 0, session_key("t", client_id), value, stamp_headers("i", 0))


def replace_value(record: LogRecord, value: bytes) -> LogRecord:
    return record._replace(value=value)


def owned_by(run: Run, number: int, offset: int) -> LogRecord:
    headers = stamp_headers(run.incarnation)
    return LogRecord(number, offset, 0, OWNER_KEY, encode_run(run), headers)


async def test_shards_that_it_is_to_own_are_loaded_before_those_it_stands_by_for() -> None:
    bench = Bench(dict.fromkeys(range(SHARDS), 1))
    await bench.shards.open()
    for number in (*bench.mine, *bench.others):
        await bench.load(number, [a_session(number, 0)])
    assert bench.loader.order == [*bench.mine, *bench.others]
    await until(lambda: len(bench.standby.followed) == len(bench.others))
    assert bench.writer.owned == bench.reader.order == bench.mine
    assert bench.standby.order == bench.others
    assert not bench.loader.followed
    await bench.shards.close()


async def test_a_shard_that_it_stands_by_for_is_read_on_when_it_is_to_own_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(dict.fromkeys(range(SHARDS), 1))
    await bench.shards.open()
    for number in (*bench.mine, *bench.others):
        await bench.load(number, [a_session(number, 0)])
    number = bench.others[0]
    await until(lambda: number in bench.standby.followed)
    bench.standby.hand_over([a_session(number, 1, client=1)])
    monkeypatch.setattr(KnownPeers, "owners", lambda _: [ME.gateway])
    bench.shards.tick()
    assert number not in bench.standby.followed
    await until(lambda: number in bench.reader.followed)
    assert bench.reader.followed[number] == 2
    assert bench.writer.owned.count(number) == 1
    bench.writer.reports[number](number, 3, None)
    bench.standby.hand_over([a_session(number, 2, client=2)])  # it was fetched before
    bench.reader.hand_over([a_session(number, 2, client=2), owned_by(ME, number, 3)])
    assert number in bench.shards.owned
    monkeypatch.setattr(KnownPeers, "owners", lambda _: [ME.gateway, OTHER.gateway])
    bench.shards.tick()
    assert number in bench.reader.followed, "the next owner waits for a word of this one"
    bench.reader.hand_over([owned_by(OTHER, number, 4)])

    def stands_by() -> bool:
        bench.shards.tick()
        return number in bench.standby.followed

    await until(stands_by)
    assert bench.writer.left == [number]
    assert number not in bench.reader.followed
    await bench.shards.close()


async def test_a_shard_is_followed_when_the_log_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(dict.fromkeys(range(SHARDS), 1))
    await bench.shards.open()
    number = bench.mine[0]
    follow = HeldReader.follow
    failed: list[Mapping[int, int]] = []

    async def fail(reader: HeldReader, positions: Mapping[int, int]) -> dict[int, int]:
        if reader is not bench.reader or failed:
            return await follow(reader, positions)
        failed.append(positions)
        raise LogError("not now", definite=False)

    monkeypatch.setattr(HeldReader, "follow", fail)
    await bench.load(number, [a_session(number, 0)])
    await until(lambda: failed)

    def is_followed() -> bool:
        bench.shards.tick()
        return number in bench.reader.followed

    await until(is_followed)
    bench.reader.hand_over([owned_by(ME, number, 1)])
    assert bench.shards.owned == [number]
    assert bench.shards.session_count == 1
    await bench.shards.close()


async def test_a_claim_says_that_somebody_waits_for_what_is_read() -> None:
    bench = Bench(dict.fromkeys(range(SHARDS), 1))
    await bench.shards.open()
    number = bench.mine[0]
    await bench.load(number, [a_session(number, 0)])
    await until(lambda: number in bench.reader.followed)
    session = a_session(number, 1)
    bench.reader.hand_over([session])
    before = bench.reader.hurried
    key = (session.key or b"").replace(b"s/", b"c/", 1)
    claim = encode_claim(OTHER, 1, clean_start=True)
    bench.reader.hand_over([LogRecord(number, 2, 0, key, claim, stamp_headers("i"))])
    assert (before, bench.reader.hurried) == (0, 1)
    await bench.shards.close()


async def test_a_shard_that_it_stands_by_for_waits_until_all_that_it_is_to_own_are_read() -> None:
    bench = Bench(dict.fromkeys(range(SHARDS), 1))
    await bench.shards.open()
    first, second = bench.mine
    await bench.asked_for(second)
    assert bench.loader.order == bench.mine  # both at once
    await bench.load(first, [a_session(first, 0)])
    await until(lambda: first in bench.reader.followed)
    bench.shards.tick()
    await until(lambda: bench.shards.is_idle)
    assert bench.loader.order == bench.mine
    await bench.load(second, [a_session(second, 0)])
    await bench.asked_for(bench.others[1])
    assert bench.loader.order == [*bench.mine, *bench.others]
    await bench.shards.close()


async def test_a_claim_in_a_loaded_shard_does_not_wait_for_one_that_is_loading() -> None:
    bench = Bench(dict.fromkeys(range(SHARDS), 2))
    await bench.shards.open()
    first, second = bench.mine
    await bench.load(first, [a_session(first, 0), a_session(first, 1, client=1)])
    await until(lambda: first in bench.reader.followed)
    await bench.asked_for(second)
    bench.loader.hand_over([a_session(second, 0)])
    bench.reader.hand_over([owned_by(ME, first, 2)])
    assert bench.shards.owned == [first]
    assert bench.shards.session_count == 2
    assert not bench.shards.is_settled
    assert not bench.loader.is_paused
    await bench.shards.close()


async def test_a_gateway_says_that_it_has_left_a_shard_until_the_log_has_it() -> None:
    bench = Bench(dict.fromkeys(range(SHARDS), 1))
    await bench.shards.open()
    number = bench.mine[0]
    await bench.load(number, [a_session(number, 0)])
    await until(lambda: number in bench.reader.followed)
    bench.reader.hand_over([owned_by(ME, number, 1)])
    bench.writer.is_failing = True
    bench.reader.hand_over([owned_by(OTHER, number, 2)])
    await until(lambda: bench.shards.is_idle)
    assert bench.writer.left == []
    bench.writer.is_failing = False

    def has_left() -> bool:
        bench.shards.tick()
        return bench.writer.left == [number]

    await until(has_left)
    await until(lambda: bench.shards.is_idle)
    bench.shards.tick()
    assert bench.writer.left == [number]
    await bench.shards.close()


async def test_a_shard_that_it_has_claimed_is_read_until_it_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever owns the shard next waits for that."""
    bench = Bench(dict.fromkeys(range(SHARDS), 1))
    await bench.shards.open()
    number = bench.mine[0]
    await bench.load(number, [a_session(number, 0)])
    await until(lambda: number in bench.writer.reports)
    monkeypatch.setattr(KnownPeers, "owners", lambda _: [OTHER.gateway, "gateway-3"])
    bench.shards.tick()
    assert number in bench.reader.followed, "its claim may be on its way"
    bench.writer.reports[number](number, 1, None)
    bench.shards.tick()
    assert number in bench.reader.followed, "the log has it"
    bench.reader.hand_over([owned_by(ME, number, 1)])
    bench.reader.hand_over([owned_by(OTHER, number, 2)])

    def is_dropped() -> bool:
        bench.shards.tick()
        return number not in bench.reader.followed

    await until(is_dropped)
    assert bench.writer.left == [number]
    await bench.shards.close()


async def test_what_was_fetched_before_and_after_the_change_of_readers_counts_once() -> None:
    bench = Bench(dict.fromkeys(range(SHARDS), 2))
    await bench.shards.open()
    number = bench.mine[0]
    records = [a_session(number, offset, client=offset) for offset in range(5)]
    await bench.load(number, records[:3])
    await until(lambda: number in bench.reader.followed)
    assert bench.reader.followed[number] == 2
    bench.loader.hand_over(records[3:])
    bench.reader.hand_over([*records[2:], owned_by(ME, number, 5)])
    assert bench.shards.session_count == 5
    await bench.shards.close()


async def test_records_that_cannot_be_read_are_counted_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(dict.fromkeys(range(SHARDS), 3))
    await bench.shards.open()
    number = bench.mine[0]
    broken = [replace_value(a_session(number, offset), b"{") for offset in range(3)]
    await bench.load(number, broken)
    assert bench.shards.ignored_count == 3
    await until(lambda: number in bench.reader.followed)
    bench.reader.hand_over([a_session(number, 3), owned_by(ME, number, 4)])
    assert bench.shards.session_count == 1
    assert [one.getMessage() for one in caplog.records].count("session record ignored") == 1
    await bench.shards.close()


async def test_clients_have_half_of_the_time_while_a_standby_is_loaded() -> None:
    bench = Bench(dict.fromkeys(range(SHARDS), 2))
    await bench.shards.open()
    for number in bench.mine:
        await bench.load(number, [a_session(number, 0), a_session(number, 1, client=1)])
        await until(lambda number=number: number in bench.reader.followed)
        bench.reader.hand_over([owned_by(ME, number, 2)])
    assert bench.shards.is_settled
    await bench.load(bench.others[0], [a_session(bench.others[0], 0)])
    assert bench.loader.is_paused
    await until(lambda: not bench.loader.is_paused)
    await bench.shards.close()
