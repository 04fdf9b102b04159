import asyncio
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from cli.system import log
from launcher.log.kafka import Brokers, running_brokers
from launcher.ports import free_ports
from mqlake.errors import LogError
from mqlake.log.admin import END_OFFSETS, LogAdmin, check_durability, ensure_log_topics, offsets
from mqlake.log.durability import MEANING, Durability, Keeping
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.records.messages import INBOUND, METRICS
from resilience.machines.volume import Volume, missing

pytestmark = pytest.mark.promise

DEADLINE_SECONDS = 120.0
PARTITIONS = 4


@pytest.mark.parametrize(
    ("keeping", "durability", "gives"),
    [
        (Keeping(1, 1, False), "D1", {"D1"}),
        (Keeping(3, 1, False), "D1", {"D1"}),  # one may be in sync alone, and acknowledge
        (Keeping(1, 2, False), "D1", {"D1"}),
        (Keeping(3, 2, False), "D2", {"D1", "D2"}),
        (Keeping(1, 1, True), "D3", {"D1", "D3"}),  # the disk may be lost with its machine
        (Keeping(3, 2, True), "D3", {"D1", "D2", "D3"}),
        (Keeping(3, 2, False, may_lose_leader=True), "D1", {"D1"}),
        (Keeping(3, 2, True, may_lose_leader=True), "D1", {"D1"}),
        (Keeping(1, 1, True, may_lose_leader=True), "D3", {"D1", "D3"}),  # there is no other copy
    ],
)
def test_what_a_log_topic_promises(keeping: Keeping, durability: str, gives: set[str]) -> None:
    assert keeping.durability == durability
    assert {one for one in Durability if keeping.gives(one)} == gives


def test_a_log_topic_that_may_lose_its_leader_says_what_to_set() -> None:
    told = Keeping(3, 2, False, may_lose_leader=True).describe()
    assert told.startswith("copies: 3, 2 of them acknowledge, in the page cache when")
    assert told.endswith("set unclean.leader.election.enable=false")
    assert "unclean" not in Keeping(1, 1, False, may_lose_leader=True).describe()


def test_every_class_says_what_it_means() -> None:
    assert MEANING.keys() == set(Durability)


async def _append(
    servers: str, log_topic: str, count: int, *, timeout_seconds: float = DEADLINE_SECONDS
) -> None:
    """Return when so many records are acknowledged."""
    writer = KafkaLogWriter(servers, delivery_timeout_seconds=timeout_seconds)
    try:
        for number in range(count):
            await writer.append_durably(log_topic, b"key", b"%d" % number, [])
    finally:
        await writer.close(timeout_seconds=1)


async def _append_while_paused(brokers: Brokers, log_topic: str, seconds: float) -> None:
    """Return when each partition has a record that came after one of its brokers stood still."""
    writer = KafkaLogWriter(brokers.bootstrap_servers, delivery_timeout_seconds=seconds)
    partitions = range(PARTITIONS)
    append = partial(writer.append_durably, log_topic, b"key", b"value", [])
    try:
        await asyncio.gather(*(append(partition=partition) for partition in partitions))
        with brokers.paused(2):
            await asyncio.gather(*(append(partition=partition) for partition in partitions))
    finally:
        await writer.close(timeout_seconds=1)


def _values(servers: str, log_topic: str) -> list[bytes]:
    ends = offsets(servers, log_topic, END_OFFSETS, DEADLINE_SECONDS)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "t", "log_level": 2})
    consumer.assign([TopicPartition(log_topic, partition, 0) for partition in ends])
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(values) < sum(ends.values()) and time.monotonic() < deadline:
        for message in consumer.consume(1_000, 1.0):
            value = message.value()
            assert isinstance(value, bytes)
            values.append(value)
    consumer.close()
    return values


def _ensure(servers: str, durability: Durability) -> None:
    ensure_log_topics(
        servers,
        inbound_partitions=PARTITIONS,
        session_shards=4,
        retention_bytes=1 << 30,
        timeout_seconds=DEADLINE_SECONDS,
        durability=durability,
    )


@pytest.mark.kafka
@pytest.mark.skipif(bool(missing()), reason=missing() or "-")
def test_d3_is_on_the_disk_when_the_power_fails_and_the_rest_is_not() -> None:
    with TemporaryDirectory() as folder:
        volume = Volume(Path(folder) / "image", Path(folder) / "disk", mebibytes=512)
        volume.start()
        brokers = Brokers.in_folder(volume.mount_point, 1)
        try:
            brokers.start()
            with pytest.raises(LogError, match=r"D2 takes 3 brokers: .* has 1"):
                _ensure(brokers.bootstrap_servers, Durability.D2)
            _ensure(brokers.bootstrap_servers, Durability.D3)
            for log_topic in (METRICS, INBOUND):
                asyncio.run(_append(brokers.bootstrap_servers, log_topic, 200))
            volume.cut()
            brokers.kill()
            volume.unmount()
            volume.mount()
            brokers.start()
            kept = {one: _values(brokers.bootstrap_servers, one) for one in (METRICS, INBOUND)}
        finally:
            brokers.kill()
            volume.stop()
    assert sorted(kept[INBOUND], key=int) == [b"%d" % number for number in range(200)]
    assert len(kept[METRICS]) < 200


@pytest.mark.kafka
def test_d2_outlives_brokers_that_stand_still_or_die_and_refuses_one_alone(tmp_path: Path) -> None:
    with running_brokers(tmp_path, 3) as brokers:
        servers = brokers.bootstrap_servers
        _ensure(servers, Durability.D2)
        check_durability(servers, Durability.D2)
        with pytest.raises(LogError, match="has D2: copies: 3, 2 of them acknowledge"):
            check_durability(servers, Durability.D3)
        asyncio.run(_append_while_paused(brokers, INBOUND, 40.0))
        asyncio.run(_append(servers, INBOUND, 50))
        log = LogAdmin(servers, 30.0)
        ends = log.ends(INBOUND)
        brokers.kill(1)
        # It goes on by itself to those that lead now; they learn a moment later how far all are.
        assert log.ends(INBOUND).keys() == ends.keys()
        asyncio.run(_append(servers, INBOUND, 50))
        assert len(_values(servers, INBOUND)) == 100 + 2 * PARTITIONS
        # The third one is in sync still, and is not enough; the first has what came before.
        brokers.kill(2)
        with pytest.raises(LogError, match="timed out"):
            asyncio.run(_append(servers, INBOUND, 1, timeout_seconds=5))
        brokers.kill()  # taking leave the last one would wait for the others


@pytest.mark.kafka
def test_a_log_of_ones_own_is_prepared_and_told(bootstrap_servers: str) -> None:
    run = partial(CliRunner().invoke, log.command, catch_exceptions=False)
    made = run(["prepare", bootstrap_servers, "--durability", "D3", "--session-shards", "4"])
    assert made.stdout == "durability D3: acknowledged messages are on the disk\n"
    told = json.loads(run(["durability", bootstrap_servers, "--json"]).stdout)
    assert told[INBOUND] == {
        "durability": "D3",
        "copies": 1,
        "acknowledged": 1,
        "is_flushed": True,
        "may_lose_leader": False,
    }
    assert f"{INBOUND}  " in run(["durability", bootstrap_servers]).stdout
    with pytest.raises(LogError, match=r"D2 is asked for, mqlake\.inbound has D3: copies: 1, 1 of"):
        run(["prepare", bootstrap_servers])
    check_durability(bootstrap_servers, Durability.D3)


@pytest.mark.kafka
def test_a_gateway_does_not_start_on_a_log_that_promises_less(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    _ensure(bootstrap_servers, Durability.D3)
    environment = {
        "MQLAKE_GATEWAY_NAME": "careful",
        "MQLAKE_GATEWAY_PORT": str(free_ports(1)[0]),
        "MQLAKE_GATEWAY_STORE_DIR": str(tmp_path / "store"),
        "MQLAKE_GATEWAY_LOG__BOOTSTRAP_SERVERS": bootstrap_servers,
        "MQLAKE_GATEWAY_DURABILITY": "D2",
    }
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "cli", "gateway"],
        env=os.environ | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ended.returncode == 1
    refused = "durability D2 is asked for, mqlake.inbound has D3: copies: 1"
    assert refused in ended.stdout + ended.stderr
