"""`bin/mqlake up --log-servers`: a log of three brokers that is not the embedded one."""

import json
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from mqlake.local.kafka import Brokers, running_brokers
from mqlake.local.testing import LocalSystem, await_condition, running_system

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with running_brokers(tmp_path_factory.mktemp("log"), 3) as running:
        yield running


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory, brokers: Brokers) -> Iterator[LocalSystem]:
    with running_system(
        tmp_path_factory.mktemp("replicated") / "data",
        options=("--log-servers", brokers.bootstrap_servers),
        environment={"MQLAKE_LOCAL_DURABILITY": "D2"},
    ) as system:
        yield system


def test_no_broker_is_needed_for_what_is_acknowledged(
    replicated: LocalSystem, brokers: Brokers
) -> None:
    assert "log" not in [process["name"] for process in replicated.status()["processes"]]
    received: list[bytes] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "of-three")
    client.on_message = lambda _client, _data, message: received.append(bytes(message.payload))
    client.connect("127.0.0.1", replicated.mqtt_port)
    client.loop_start()
    try:
        granted: list[int] = []
        client.on_subscribe = lambda _client, _data, packet_id, _codes, _more: granted.append(
            packet_id
        )
        client.subscribe("of/three", qos=1)
        await_condition(lambda: bool(granted), "it is subscribed")
        sent = []
        # Each leads some partitions.
        for number in (1, 2, 3):
            brokers.kill(number)
            for part in range(20):
                sent.append(b"without %d: %d" % (number, part))
                client.publish("of/three", sent[-1], qos=1).wait_for_publish(60)
            brokers.start()
            await_condition(
                lambda: not _findings(replicated, "log", "error", "warning"),
                "all replicas are in sync again",
            )
        await_condition(lambda: set(sent) <= set(received), "all have come")
        assert list(dict.fromkeys(received)) == sent
    finally:
        client.disconnect()
        client.loop_stop()
    replicated.await_healthy()
    assert _findings(replicated, "durability", "ok")


def _findings(system: LocalSystem, check: str, *levels: str) -> list[dict[str, str]]:
    found = json.loads(system.run("doctor", "--json").stdout)["findings"]
    return [one for one in found if one["check"] == check and one["level"] in levels]


def test_the_data_directory_counts_on_its_log(tmp_path: Path, brokers: Brokers) -> None:
    system = LocalSystem.in_folder(
        tmp_path / "data", options=("--log-servers", brokers.bootstrap_servers)
    )
    system.data_dir.mkdir()
    (system.data_dir / "lock").touch()
    (system.data_dir / "log-cluster").write_text("another\n")
    result = system.run("up", *system.up_arguments(), "--detach")
    assert result.returncode == 1
    assert f"the log at {brokers.bootstrap_servers} is cluster " in result.stderr
    assert "counts on cluster another: name its servers in log_servers" in result.stderr


def test_copies_take_brokers(tmp_path: Path) -> None:
    system = LocalSystem.in_folder(tmp_path / "data", environment={"MQLAKE_LOCAL_DURABILITY": "D2"})
    result = system.run("up", *system.up_arguments(), "--detach")
    assert result.returncode == 1
    assert "durability D2 takes a log of three brokers: name them in log_servers" in result.stderr
