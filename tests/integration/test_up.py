"""`bin/mqlake up`, `status` and `down` on real processes."""

import json
import os
import signal
import socket
import stat
import urllib.request
from collections import Counter
from pathlib import Path

import paho.mqtt.client as mqtt
import psutil
import pytest
import trustme
from confluent_kafka import Consumer, TopicPartition
from paho.mqtt.enums import CallbackAPIVersion

from launcher.planning.parts import SYSTEM_STOP_TIMEOUT_SECONDS
from launcher.testing.systems import LocalSystem, await_condition
from mqlake.log.security import client_config, read_security
from mqlake.records.messages import INBOUND
from tests.integration.clients.publishing import publish
from tests.integration.logins import is_refused, lists_topics
from tests.integration.tables import rows_of
from tests.integration.thrift import NO_STATE_TABLES

pytestmark = pytest.mark.system


def inbound_payloads(bootstrap_servers: str) -> list[bytes]:
    """Return the payload of every message in the log; barriers have none."""
    consumer = Consumer({**client_config(bootstrap_servers), "group.id": "test"})
    payloads = []
    for partition in consumer.list_topics(INBOUND, timeout=60).topics[INBOUND].partitions:
        _, end = consumer.get_watermark_offsets(TopicPartition(INBOUND, partition), timeout=60)
        consumer.assign([TopicPartition(INBOUND, partition, 0)])
        position = 0
        while position < end:
            record = consumer.poll(60)
            assert record is not None
            assert record.error() is None
            position = (record.offset() or 0) + 1
            value = record.value()
            if value:
                payloads.append(value)
    consumer.close()
    return payloads


def write_certificate(folder: Path) -> dict[str, str]:
    """Write a certificate for the API; return what in the environment names it."""
    issued = trustme.CA().issue_cert("api.example")
    certificate, key = folder / "api.pem", folder / "api.key"
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    return {"MQLAKE_API_CERTIFICATE": str(certificate), "MQLAKE_API_KEY": str(key)}


def stored_payloads(system: LocalSystem) -> Counter[bytes]:
    """Return how often the history holds each payload of `kept/1`."""
    query = "SELECT payload FROM messages WHERE topic = 'kept/1'"
    return Counter(payload for (payload,) in rows_of(system, "messages", query))


class TestRunningSystem:
    def test_its_data_are_its_owners_alone(self, system: LocalSystem) -> None:
        assert stat.S_IMODE(system.data_dir.stat().st_mode) == 0o700
        for name in ("kafka", "logs", "run"):
            assert stat.S_IMODE((system.data_dir / name).stat().st_mode) == 0o700, name

    def test_status_lists_every_process_as_healthy(self, system: LocalSystem) -> None:
        result = system.run("status", "--wait", "180", "--json")
        assert result.returncode == 0
        status = json.loads(result.stdout)
        names = [process["name"] for process in status["processes"]]
        assert names == [
            *("supervisor", "log", "router", "rules", "api", "query", "lake"),
            *("gateway-1", "gateway-2"),
        ]
        assert all(process["healthy"] for process in status["processes"])
        await_condition(
            lambda: all(process["rss_bytes"] > 5e6 for process in system.status()["processes"]),
            "the memory of every process is known",
        )

    def test_memory_of_the_router_includes_its_jvm(self, system: LocalSystem) -> None:
        def is_counted() -> bool:
            router = system.process("router")
            python_bytes: int = psutil.Process(router["pid"]).memory_info().rss
            return bool(router["rss_bytes"] > 2 * python_bytes)

        await_condition(is_counted, "Python alone is far smaller")

    def test_the_supervisor_loads_no_library_of_the_parts(self, system: LocalSystem) -> None:
        """It has the memory of a small program beside them."""
        loaded = Path(f"/proc/{system.state().pid}/maps").read_text(encoding="utf-8")
        assert "/site-packages/pydantic_core/" in loaded, "so it would be seen"
        for name in ("confluent_kafka", "deltalake", "numpy", "pyarrow", "uvloop"):
            assert f"/site-packages/{name}/" not in loaded

    def test_status_without_json_is_a_table(self, system: LocalSystem) -> None:
        result = system.run("status", "--wait", "180")
        assert result.returncode == 0
        assert "gateway-2" in result.stdout
        assert "not healthy" not in result.stdout

    def test_tokens_are_for_their_owner_alone(self, system: LocalSystem) -> None:
        for name in ("api-token", "connect-token", "rules-key", "log-security.toml"):
            assert stat.S_IMODE((system.data_dir / name).stat().st_mode) == 0o600

    def test_nobody_is_let_in_by_the_log_who_does_not_know_the_secret(
        self, system: LocalSystem
    ) -> None:
        servers = system.state().bootstrap_servers
        assert is_refused({"bootstrap.servers": str(servers)})
        assert lists_topics(client_config(servers))

    def test_no_secret_is_shown_by_processes_or_their_logs(self, system: LocalSystem) -> None:
        """Of arguments everybody on a machine can read them; logs are sent around."""
        secrets = [
            system.data_dir.joinpath(name).read_text(encoding="ascii").strip()
            for name in ("connect-token", "rules-key")
        ]
        secrets.append(read_security(system.data_dir / "log-security.toml").password)
        supervisor = psutil.Process(system.state().pid)
        told = [
            Path(f"/proc/{one.pid}/cmdline")
            for one in (supervisor, *supervisor.children(recursive=True))
        ]
        told += [path for path in (system.data_dir / "logs").iterdir() if path.is_file()]
        told += [system.data_dir / "state.json"]
        told += [path for path in (system.data_dir / "run").rglob("*") if path.is_file()]
        shown = {
            str(path)
            for path in told
            for secret in secrets
            if path.exists() and secret.encode() in path.read_bytes()
        }
        assert not shown
        assert not [secret for secret in secrets if secret in json.dumps(system.status())]

    def test_api_shows_the_same_processes(self, system: LocalSystem) -> None:
        system.await_healthy()
        with urllib.request.urlopen(f"{system.api_url}/api/v1/ready") as answer:
            assert json.load(answer) == {"ready": True}
        request = urllib.request.Request(
            f"{system.api_url}/api/v1/processes",
            headers={"Authorization": f"Bearer {system.api_token}"},
        )
        with urllib.request.urlopen(request) as answer:
            shown = json.load(answer)["processes"]
        pids = {process["name"]: process["pid"] for process in system.status()["processes"]}
        assert {process["name"]: process["pid"] for process in shown} == pids

    def test_status_lists_every_listener(self, system: LocalSystem) -> None:
        assert system.status()["listeners"] == {
            "gateway-1": [
                f"mqtt://127.0.0.1:{system.mqtt_port}",
                f"ws://127.0.0.1:{system.websocket_port}/mqtt",
            ],
            "gateway-2": [f"mqtt://127.0.0.1:{system.mqtt_port + 1}"],
        }

    def test_first_gateway_speaks_websocket(self, system: LocalSystem) -> None:
        system.await_healthy()
        client = mqtt.Client(CallbackAPIVersion.VERSION2, transport="websockets")
        client.connect("127.0.0.1", system.websocket_port)
        client.loop_start()
        published = client.publish("by/websocket", b"", qos=1)
        published.wait_for_publish(30)
        client.disconnect()
        client.loop_stop()
        assert published.is_published()

    def test_api_asks_a_gateway_to_reload(self, system: LocalSystem) -> None:
        request = urllib.request.Request(
            f"{system.api_url}/api/v1/gateways/gateway-2/reload",
            headers={"Authorization": f"Bearer {system.api_token}"},
            method="POST",
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 202
            assert json.load(answer) == {"gateway": "gateway-2", "action": "reload"}

    def test_second_up_on_the_same_data_directory_is_refused(self, system: LocalSystem) -> None:
        result = system.run("up", *system.up_arguments())
        assert result.returncode == 1
        assert result.stdout == ""
        assert result.stderr.startswith(f"mqlake: a system runs on {system.data_dir} already (pid ")
        addresses = [f"mqtt://127.0.0.1:{system.mqtt_port + number}" for number in range(2)]
        assert f" at {' '.join(addresses)} {system.api_url}: stop it with" in result.stderr
        assert result.stderr.count("\n") == 1
        system.await_healthy()

    @pytest.mark.parametrize("name", ["gateway-2", "api", "log"])
    def test_killed_child_is_started_again(self, system: LocalSystem, name: str) -> None:
        system.await_healthy()
        restarts = system.process(name)["restarts"]
        killed = system.kill(name)
        system.await_healthy()
        process = system.process(name)
        assert process["restarts"] == restarts + 1
        assert process["pid"] != killed
        assert process["last_exit"] == "signal 9 (SIGKILL)"


class TestRefusals:
    def test_port_in_use_is_refused_by_name_of_port_and_option(self, tmp_path: Path) -> None:
        system = LocalSystem.in_folder(tmp_path / "data", gateways=2)
        with socket.create_server(("127.0.0.1", system.mqtt_port + 1)):
            result = system.run("up", *system.up_arguments(), "--detach")
        assert result.returncode == 1
        assert result.stdout == ""
        assert result.stderr == (
            f"mqlake: port {system.mqtt_port + 1} for MQTT (gateway-2) is in use by another "
            f"program (`ss -ltnp sport = :{system.mqtt_port + 1}` shows it): choose another with "
            "--mqtt-port\n"
        )

    def test_too_little_memory_is_refused(self, tmp_path: Path) -> None:
        environment = {"MQLAKE_LOCAL_MIN_AVAILABLE_MEMORY_MB": "100000000"}
        system = LocalSystem.in_folder(tmp_path / "data", environment=environment)
        result = system.run("up", *system.up_arguments())
        assert result.returncode == 1
        assert "of memory are available, 100000.0 GB are needed" in result.stderr
        assert result.stderr.count("\n") == 1

    def test_a_certificate_that_is_none_is_refused(self, tmp_path: Path) -> None:
        files = write_certificate(tmp_path)
        Path(files["MQLAKE_API_KEY"]).write_text("nothing")
        result = LocalSystem.in_folder(tmp_path / "data", environment=files).run("up")
        assert result.returncode == 1
        assert result.stderr.startswith("mqlake: certificate ")

    def test_java_too_old_is_refused(self, tmp_path: Path) -> None:
        old = tmp_path / "jdk-11"
        (old / "bin").mkdir(parents=True)
        (old / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
        (old / "bin" / "java").chmod(0o755)
        (old / "release").write_text('JAVA_VERSION="11.0.2"\n')
        system = LocalSystem.in_folder(tmp_path / "data", environment={"JAVA_HOME": str(old)})
        result = system.run("up", *system.up_arguments())
        assert result.returncode == 1
        assert "which is Java 11, expected 17 or newer" in result.stderr
        assert result.stderr.count("\n") == 1

    def test_folder_with_other_files_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "letter.txt").write_text("dear reader")
        system = LocalSystem.in_folder(tmp_path)
        result = system.run("up", *system.up_arguments())
        assert result.returncode == 1
        assert "holds files that are not mqlake's (letter.txt)" in result.stderr
        assert [entry.name for entry in tmp_path.iterdir()] == ["letter.txt"]

    def test_commands_on_a_system_that_does_not_run_say_so(self, tmp_path: Path) -> None:
        system = LocalSystem.in_folder(tmp_path)
        status = system.run("status", "--json")
        assert status.returncode == 1
        assert status.stderr == (
            f"mqlake: no system runs on {tmp_path}; start it with: "
            f"bin/mqlake up --data-dir {tmp_path}\n"
        )
        assert system.run("down").returncode == 0


@pytest.mark.campaign("tests/launcher/test_supervisor.py kills one with small children")
def test_killed_supervisor_leaves_no_process_and_the_next_one_finds_everything(
    system: LocalSystem, tmp_path: Path
) -> None:
    """It runs beside another system all the while, and its API by TLS."""
    environment = write_certificate(tmp_path) | NO_STATE_TABLES
    mine = LocalSystem.in_folder(tmp_path / "a folder, with blanks", environment=environment)
    assert mine.up() == (
        f"ready mqtt://127.0.0.1:{mine.mqtt_port} https://127.0.0.1:{mine.api_port}"
    )
    kept = [b"before the end %d" % number for number in range(3_000)]
    publish(mine.mqtt_port, "kept/1", *kept)
    os.kill(mine.state().pid, signal.SIGKILL)
    await_condition(lambda: not mine.left_processes(), "every process has gone")

    with mine.up_in_foreground() as up:
        try:
            assert up.stdout is not None
            assert up.stdout.readline().startswith("ready mqtt://")
            publish(mine.mqtt_port, "kept/2", b"after it")
            payloads = inbound_payloads(mine.state().bootstrap_servers)
            assert sorted(payloads) == sorted([b"after it", *kept])
            await_condition(
                lambda: stored_payloads(mine).total() >= len(kept), "the rows are in the history"
            )
            assert stored_payloads(mine) == Counter(kept)
        finally:
            up.send_signal(signal.SIGTERM)
        assert up.wait(SYSTEM_STOP_TIMEOUT_SECONDS) == 0
    assert mine.left_processes() == []
    system.await_healthy()
    assert not {*payloads} & {*inbound_payloads(system.state().bootstrap_servers)}


@pytest.mark.campaign("tests/launcher/test_supervisor.py stops one that starts small children")
def test_sigterm_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    system = LocalSystem.in_folder(tmp_path / "data")
    up = system.up_in_foreground()
    await_condition(
        lambda: (system.data_dir / "run" / "router.json").exists(), "the router has been started"
    )
    up.send_signal(signal.SIGTERM)
    up.communicate(timeout=SYSTEM_STOP_TIMEOUT_SECONDS)
    assert up.returncode == 130
    assert system.left_processes() == []
