"""What the checks say of systems that are made up, and of none."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from cli.system.doctor import command
from ingest.balancer.control_plane import ControlPlane
from launcher.doctor import access, clocks, machine, processes, rules, traffic
from launcher.doctor.contract import Finding, Level, Patient
from launcher.doctor.examination import CHECKS, examine, new_patient, worst
from launcher.log.room import LogRoomFinding
from launcher.paths import DataDirectory
from launcher.ports import free_ports
from mqlake.log.growth import Growth
from mqlake.log.log_topics import SHARED_LOG_TOPICS
from mqlake.processes.heartbeat import write_heartbeat
from mqlake.processes.query_application import SOCKET_FILE
from mqlake.processes.status import (
    STATE_FILE,
    GatewayAddress,
    ProcessReport,
    SystemState,
    replace_file,
)
from mqlake.records.messages import GATEWAYS, INBOUND, OUTPUTS, SESSIONS
from rules.language.windows import PAYLOAD_LATENESS_MS
from streaming.application.figures import Heap
from tests.ingest.balancer.serving import served_plane
from tests.ingest.gateway.harness import running_gateway
from tests.mqlake.test_status import make_state
from tests.pace import within
from tests.waiting import until

Look = Callable[[Patient], Iterator[Finding]]
QUERY = {
    "active": True,
    "real_time": True,
    "lag_records": 0,
    "input_rows_per_second": 0.0,
    "restarts": 0,
}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


def patient(folder: Path, *reports: ProcessReport, **more: Any) -> Patient:
    state = replace(make_state(), written_at=time.time(), processes=reports, **more)
    return Patient(DataDirectory(folder), state)


def engine(queries: dict[str, Any], uptime: float = 900.0, **figures: Any) -> ProcessReport:
    figures = {"queries": queries, **figures}
    return ProcessReport("router", 8, True, "routing", uptime_seconds=uptime, figures=figures)


def found(look: Look, one: Patient) -> dict[Level, list[str]]:
    """Return details by level; each that is not well comes with advice."""
    details: dict[Level, list[str]] = {level: [] for level in Level}
    for finding in look(one):
        assert (finding.level is Level.OK) == (not finding.advice)
        details[finding.level].append(finding.detail)
    return details


def test_where_nothing_runs_only_what_is_there_is_looked_at(tmp_path: Path) -> None:
    one, problems = new_patient(tmp_path)
    assert problems == []
    findings = list(examine(one))
    assert findings[0].detail == f"no system runs on {tmp_path}"
    assert findings[0].advice.startswith("start it: bin/mqlake up --data-dir")
    offline = {check.name for check in CHECKS if not check.needs_running}
    assert {finding.check for finding in findings} <= offline
    assert worst(findings) is Level.ERROR


def test_a_damaged_state_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text("{")
    _, problems = new_patient(tmp_path)
    assert "damaged" in problems[0].detail


def test_a_supervisor_that_does_not_get_to_run_is_found(tmp_path: Path) -> None:
    one = patient(tmp_path)
    assert found(processes.look_at_system, one)[Level.OK]
    assert one.state is not None
    late = replace(one, state=replace(one.state, written_at=time.time() - 60))
    assert "written nothing for 60 s" in found(processes.look_at_system, late)[Level.ERROR][0]
    begins = replace(one, state=replace(one.state, phase="starting"))
    assert found(processes.look_at_system, begins)[Level.ERROR] == ["it is starting"]


def test_processes_that_are_down_or_were_are_found(tmp_path: Path) -> None:
    well = ProcessReport("api", 7, healthy=True, detail="serving")
    assert found(processes.look_at_processes, patient(tmp_path, well))[Level.OK]
    down = ProcessReport("log", None, healthy=False, detail="ended", last_exit="signal 9")
    begins = ProcessReport("lake", 10, False, "starting Spark", uptime_seconds=5)
    details = found(processes.look_at_processes, patient(tmp_path, well, begins))
    assert details[Level.WARNING] == ["lake starts: starting Spark"]
    assert not details[Level.ERROR]
    stuck = replace(begins, uptime_seconds=500)
    details = found(processes.look_at_processes, patient(tmp_path, well, stuck))
    assert details[Level.ERROR] == ["lake: starting Spark"]
    again = ProcessReport("rules", 9, True, "", restarts=3, last_exit="exit code 1")
    details = found(processes.look_at_processes, patient(tmp_path, well, down, again))
    assert details[Level.ERROR] == ["log: ended; it ended before: signal 9"]
    assert "rules was started again 3 times" in details[Level.WARNING][0]
    assert not details[Level.OK]
    recovered = replace(again, uptime_seconds=3_600.0)
    details = found(processes.look_at_processes, patient(tmp_path, well, recovered))
    assert not details[Level.WARNING]


def test_heartbeats_that_are_old_or_of_another_run_are_found(tmp_path: Path) -> None:
    one = patient(
        tmp_path,
        ProcessReport("supervisor", 1, True, ""),
        ProcessReport("log", 2, True, ""),
        ProcessReport("haproxy", 3, True, ""),
        ProcessReport("api", os.getpid(), True, ""),
        ProcessReport("rules", 4, True, ""),
        ProcessReport("gateway-1", os.getpid(), True, ""),
    )
    one.data.run.mkdir()
    for name in ("api", "rules", "gateway-1"):
        write_heartbeat(one.data.heartbeat(name), name, healthy=True, detail="")
    beat = json.loads(one.data.heartbeat("gateway-1").read_text())
    beat["written_at"] -= 100
    one.data.heartbeat("gateway-1").write_text(json.dumps(beat))
    details = found(processes.look_at_heartbeats, one)
    assert details[Level.OK] == ["1 are fresh"]
    assert details[Level.ERROR][0].startswith("rules has not written ")
    assert details[Level.ERROR][1].startswith("gateway-1 is stuck: no heartbeat for 100 s")


def test_queries_that_fail_or_fall_behind_are_found(tmp_path: Path) -> None:
    well = dict.fromkeys(processes.ALWAYS, QUERY)
    idle = {"rules": {**QUERY, "active": False}}
    assert found(processes.look_at_queries, patient(tmp_path, engine(well | idle))) == {
        Level.OK: ["3 run"],
        Level.WARNING: [],
        Level.ERROR: [],
    }
    sick = {
        "router": {**QUERY, "real_time": False},
        "history": {**QUERY, "active": False},
        "state": {**QUERY, "restarts": 2},
        "w1": {**QUERY, "lag_records": 50_000, "tenant": "acme", "rule": "hot"},
        "w2": {**QUERY, "lag_records": 50_000, "input_rows_per_second": 9e3},
    }
    details = found(processes.look_at_queries, patient(tmp_path, engine(sick)))
    assert details[Level.ERROR] == ["history does not run"]
    assert details[Level.WARNING] == [
        "state failed 2 times",
        "acme/hot is 50000 records behind and reads 0 a second",
        "the router runs in micro-batches, which adds about 0.1 s to each message",
    ]
    assert found(processes.look_at_queries, patient(tmp_path))[Level.WARNING]


def test_queries_that_have_just_begun_to_start_are_no_error(tmp_path: Path) -> None:
    """The router runs first; the figures of the others are some seconds old."""
    begun = {"router": QUERY, "history": {**QUERY, "active": False}}
    details = found(processes.look_at_queries, patient(tmp_path, engine(begun, uptime=30)))
    assert details[Level.ERROR] == []
    assert details[Level.WARNING] == ["history is starting"]
    failed = {"router": QUERY, "history": {**QUERY, "active": False, "restarts": 1}}
    details = found(processes.look_at_queries, patient(tmp_path, engine(failed, uptime=30)))
    assert details[Level.ERROR] == ["history does not run"]


@pytest.mark.parametrize(("used", "level"), [(10, Level.OK), (97, Level.WARNING)])
def test_a_heap_that_is_full_is_found(tmp_path: Path, used: int, level: Level) -> None:
    full = engine({}, **Heap(used << 20, 100 << 20).figures)
    details = found(processes.look_at_java, patient(tmp_path, full))
    assert f"heap of router: {used} of 100 MiB in use" in details[level]


@pytest.mark.parametrize(
    ("ends", "warnings"),
    [
        ({}, 0),
        ({"idle": 3}, 0),
        ({"memory": 2, "idle": 1}, 1),
        ({"memory": 1, "asked": 1}, 2),
    ],
)
def test_queries_that_end_their_spark_are_found(
    tmp_path: Path, ends: dict[str, int], warnings: int
) -> None:
    figures = {"phase": "running", "uses": 2, "ends": ends}
    one = ProcessReport("query", 8, True, "2 queries", figures=figures)
    details = found(processes.look_at_query_application, patient(tmp_path, one))
    assert len(details[Level.WARNING]) == warnings
    assert details[Level.OK] == ([] if warnings else ["running, 2 uses"])


def test_secrets_that_others_can_read_are_found(tmp_path: Path) -> None:
    one = patient(tmp_path)
    one.data.api_token.write_text("secret")
    one.data.api_token.chmod(0o600)
    details = found(machine.look_at_files, one)
    assert details[Level.OK] == ["1 secrets are private"]
    missing = [one.data.connect_token, one.data.rules_key]
    assert details[Level.ERROR] == [f"{path} is missing" for path in missing]
    one.data.kafka.mkdir()
    details = found(machine.look_at_files, one)
    assert f"{one.data.log_security} is missing" in details[Level.ERROR]
    one.data.api_token.chmod(0o640)
    tmp_path.chmod(0o750)
    details = found(machine.look_at_files, one)
    assert "can be read by others (mode 0640)" in details[Level.ERROR][0]
    assert f"others may look into {tmp_path} (mode 0750)" in details[Level.ERROR][-1]


def test_activations_that_were_refused_are_an_error(tmp_path: Path) -> None:
    one = patient(tmp_path, engine({"router": QUERY}, refused_activations=2))
    (detail,) = found(processes.look_at_queries, one)[Level.ERROR]
    assert detail.startswith("2 activations of rules are not signed by this system")


def test_a_table_that_cannot_be_read_is_found(tmp_path: Path) -> None:
    from deltalake import write_deltalake
    from pyarrow import table

    one = patient(tmp_path)
    write_deltalake(str(one.data.tables / "messages"), table({"a": [1]}))
    assert found(machine.look_at_tables, one)[Level.OK] == ["1 can be read"]
    log = one.data.tables / "messages" / "_delta_log" / f"{0:020}.json"
    log.write_text("nonsense")
    details = found(machine.look_at_tables, one)
    assert details[Level.ERROR][0].startswith("messages cannot be read: ")


def test_a_full_disk_and_a_large_checkpoint_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = patient(tmp_path)
    (one.data.checkpoints / "history").mkdir(parents=True)
    (one.data.checkpoints / "history" / "0").write_bytes(b"x" * 10_000)
    assert found(machine.look_at_checkpoints, one)[Level.OK]
    monkeypatch.setattr(machine, "LARGE_CHECKPOINT_BYTES", 5_000)
    assert "history" in found(machine.look_at_checkpoints, one)[Level.WARNING][0]
    monkeypatch.setattr(machine, "LITTLE_DISK_BYTES", 2**62)
    assert "are free" in found(machine.look_at_disk, one)[Level.WARNING][0]
    monkeypatch.setattr(machine, "LEAST_DISK_BYTES", 2**62)
    assert "are free" in found(machine.look_at_disk, one)[Level.ERROR][0]


@pytest.mark.parametrize(
    ("growth", "lasts", "level", "says"),
    [
        (0, None, Level.OK, "does not grow"),
        (2_000_000, 90_000, Level.OK, "at 2.00 MB/s the log has room for 25 hours"),
        (2_000_000, 9_000, Level.WARNING, "2 hours, then messages are refused"),
        (2_000_000, 900, Level.ERROR, "15 minutes"),
    ],
)
def test_a_log_whose_disk_does_not_last_is_found(
    tmp_path: Path, growth: int, lasts: int | None, level: Level, says: str
) -> None:
    room = LogRoomFinding(10**9, 1, growth).figures | {"lasts_seconds": lasts}
    log = ProcessReport("log", 7, True, "", figures={"room": room})
    assert says in found(machine.look_at_log_room, patient(tmp_path, log))[level][0]


def test_a_full_log_is_found(tmp_path: Path) -> None:
    room = LogRoomFinding(1, 0, why_full="3 MiB in the log, 2 MiB allowed").figures
    log = ProcessReport("log", 7, True, "", figures={"room": room})
    assert found(machine.look_at_log_room, patient(tmp_path, log))[Level.ERROR] == [
        "the log is full, messages are refused: 3 MiB in the log, 2 MiB allowed"
    ]


def test_of_a_log_that_was_just_started_nothing_is_said(tmp_path: Path) -> None:
    room = LogRoomFinding(1, 1).figures
    log = ProcessReport("log", 7, True, "", figures={"room": room})
    for one in (patient(tmp_path), patient(tmp_path, log)):
        assert list(machine.look_at_log_room(one)) == []


def test_readers_that_hold_up_the_log_are_named(tmp_path: Path) -> None:
    held = engine(
        {"router": QUERY, "history": QUERY, "state": QUERY},
        log_held_by={"mqlake.inbound": ["history", "state"]},
    )
    (warning,) = found(processes.look_at_queries, patient(tmp_path, held))[Level.WARNING]
    assert "mqlake.inbound keeps more than its retention: history, state must" in warning


class OneBroker:
    """An admin client's answer: each log topic has so many partitions with one replica."""

    counts: ClassVar[dict[str, int]] = {}

    def __init__(self, _options: dict[str, Any]) -> None:
        self.brokers = {1: None}

    def list_topics(self, timeout: float) -> Any:
        assert timeout > 0
        whole = SimpleNamespace(leader=1, isrs=[1], replicas=[1])
        topics = {
            log_topic: SimpleNamespace(partitions=dict.fromkeys(range(count), whole))
            for log_topic, count in self.counts.items()
        }
        return SimpleNamespace(brokers=self.brokers, topics=topics)


def test_partitions_that_somebody_added_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", OneBroker)
    counts = dict.fromkeys(SHARED_LOG_TOPICS, 1) | {INBOUND: 4, OUTPUTS: 4}
    monkeypatch.setattr(OneBroker, "counts", counts)
    watch = SimpleNamespace(used=lambda: 4, growth=None)
    monkeypatch.setattr("mqlake.log.growth_watch.GrowthWatch", lambda *_: watch)
    one = patient(tmp_path, gateways=())
    assert found(traffic.look_at_log, one)[Level.WARNING] == []
    counts[INBOUND] = 8
    (warning,) = found(traffic.look_at_log, one)[Level.WARNING]
    assert f"{INBOUND} has 8 partitions, messages are in 4" in warning
    watch.growth = Growth(4, 8).moved()
    (warning,) = found(traffic.look_at_log, one)[Level.WARNING]
    assert "it grows from 4 to 8 partitions, last step: moved" in warning
    watch.growth, watch.used = Growth(4, 8).cut_at(dict.fromkeys(range(4), 9)).finished(), lambda: 8
    assert found(traffic.look_at_log, one)[Level.WARNING] == []


def test_a_log_topic_that_takes_no_records_is_named(tmp_path: Path) -> None:
    waiting = {"records": 7, "bytes": 700, "oldest_seconds": 61.2}
    away = engine({"router": QUERY}, undelivered={"mqlake.delivery.gateway-1-0": waiting})
    (warning,) = found(processes.look_at_queries, patient(tmp_path, away))[Level.WARNING]
    assert "7 records (700 bytes) wait for mqlake.delivery.gateway-1-0, which does not" in warning
    assert "for 61 s" in warning


def test_a_gateway_that_protects_itself_is_named(tmp_path: Path) -> None:
    gateways = tuple(GatewayAddress(f"gateway-{number}", "127.0.0.1", 1) for number in (1, 2))
    busy = ProcessReport("gateway-1", 7, True, "", figures={"overload_step": 2})
    calm = ProcessReport("gateway-2", 8, True, "", figures={"overload_step": 0})
    details = found(processes.look_at_load, patient(tmp_path, busy, calm, gateways=gateways))
    assert details[Level.WARNING] == ["gateway-1 is overloaded: publishers are read no further"]
    assert details[Level.OK] == ["1 gateways are not overloaded"]


def test_ports_where_nobody_listens_are_found(tmp_path: Path) -> None:
    with socket.socket() as one, socket.socket(socket.AF_UNIX) as other:
        one.bind(("127.0.0.1", 0))
        one.listen()
        other.bind(str(tmp_path / SOCKET_FILE))
        other.listen()
        port = one.getsockname()[1]
        listener = (f"unix://{tmp_path / SOCKET_FILE}",)
        details = found(
            machine.look_at_ports,
            patient(
                tmp_path,
                bootstrap_servers=f"127.0.0.1:{port}",
                api_url=f"http://127.0.0.1:{port}",
                gateways=(GatewayAddress("gateway-1", "127.0.0.1", port, listener),),
                metrics={"api": "http://127.0.0.1:1/metrics"},
            ),
        )
    assert details == {
        Level.OK: ["5 are open"],
        Level.WARNING: [],
        Level.ERROR: ["no process listens for metrics of api"],
    }


@pytest.mark.parametrize(
    ("seconds", "level", "detail"),
    [
        (0.9, Level.OK, "1 gateways agree with the log within 1 s"),
        (1.2, Level.WARNING, "the clock of gateway-1 is 1.2 s ahead of the log's"),
        (-9.0, Level.WARNING, "the clock of gateway-1 is 9.0 s behind the log's"),
        (-30.0, Level.ERROR, "the clock of gateway-1 is 30.0 s behind the log's"),
        (540.0, Level.ERROR, "the clock of gateway-1 is 540.0 s ahead of the log's"),
    ],
)
def test_a_gateway_with_a_wrong_clock_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, level: Level, detail: str
) -> None:
    gateways = [
        {"name": "gateway-1", "alive": True, "clock_ahead_seconds": seconds},
        {"name": "gateway-2", "alive": False, "clock_ahead_seconds": 99.0},
        {"name": "gateway-3", "alive": True, "clock_ahead_seconds": None},
    ]
    monkeypatch.setattr(clocks, "gateways_of", lambda _: gateways)
    monkeypatch.setattr(clocks, "_newest", lambda _: ({}, ""))
    assert found(clocks.look_at_clocks, patient(tmp_path))[level] == [detail]


@pytest.mark.parametrize(
    ("topic", "seconds", "alive", "level", "detail"),
    [
        (GATEWAYS, -0.4, True, Level.OK, "the log's broker 1 is not ahead of this machine"),
        (GATEWAYS, 1.5, True, Level.WARNING, "the clock of the log's broker 1 is 1.5 s ahead of"),
        (GATEWAYS, -9.0, True, Level.WARNING, "the clock of the log's broker 1 is 7.0 s behind"),
        (SESSIONS, 60.0, True, Level.ERROR, "the clock of the log's broker 1 is 60.0 s ahead of"),
        (GATEWAYS, -600.0, True, Level.ERROR, "the clock of the log's broker 1 is 598.0 s behind"),
        # What is old where nobody has to write is no sign.
        (SESSIONS, -600.0, True, Level.OK, "the log's broker 1 is not ahead of this machine"),
        (GATEWAYS, -600.0, False, Level.OK, "the log's broker 1 is not ahead of this machine"),
    ],
)
def test_a_broker_with_a_wrong_clock_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
    seconds: float,
    alive: bool,
    level: Level,
    detail: str,
) -> None:
    gateway = {"name": "gateway-1", "alive": alive, "clock_ahead_seconds": None}
    monkeypatch.setattr(clocks, "gateways_of", lambda _: [gateway])
    monkeypatch.setattr(clocks, "_newest", lambda _: ({(topic, "1"): 1_000.0 + seconds}, ""))
    one = patient(tmp_path)
    monkeypatch.setattr(clocks, "time", SimpleNamespace(time=lambda: 1_000.0))
    one = replace(one, state=replace(one.running, written_at=1_000.0))
    (first,) = found(clocks.look_at_clocks, one)[level]
    assert first.startswith(detail)


def test_a_log_that_does_not_tell_its_newest_records_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka's own mock of a cluster keeps the protocol, and no times of records."""
    log = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "", "log_level": 2})
    (broker,) = log.list_topics(timeout=within(10)).brokers.values()
    for log_topic in clocks.WITH_LOG_TIME:
        log.produce(log_topic, b"")
    log.flush(within(10))
    one = patient(tmp_path)
    servers = f"{broker.host}:{broker.port}"
    one = replace(one, state=replace(one.running, bootstrap_servers=servers))
    monkeypatch.setattr(clocks, "gateways_of", lambda _: [])
    (told,) = found(clocks.look_at_clocks, one)[Level.OK]
    assert told.startswith("clocks of the log's brokers are not compared: the log does not tell")


def test_a_clock_is_wrong_once_windows_do_not_wait_for_it() -> None:
    assert clocks.WRONG_SECONDS * 1000 == PAYLOAD_LATENESS_MS


@pytest.mark.parametrize(("ahead", "level"), [(5.0, Level.WARNING), (90.0, Level.ERROR)])
def test_a_heartbeat_in_the_future_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, level: Level
) -> None:
    monkeypatch.setattr(clocks, "gateways_of", lambda _: [])
    monkeypatch.setattr(clocks, "_newest", lambda _: ({}, ""))
    one = patient(tmp_path, ProcessReport("api", os.getpid(), True, ""))
    one.data.run.mkdir()
    write_heartbeat(one.data.heartbeat("api"), "api", healthy=True, detail="")
    assert not any(found(clocks.look_at_clocks, one).values())
    monkeypatch.setattr(clocks, "time", SimpleNamespace(time=lambda: time.time() - ahead))
    (detail,) = found(clocks.look_at_clocks, one)[level]
    assert detail.startswith("the last heartbeat of supervisor, api is ")
    assert detail.endswith(" in the future: the clock went back")


def test_a_gateway_that_nobody_starts_again_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateways = [
        {"name": "gateway-1", "alive": False, "last_seen": "2026-01-01T00:00:00Z"},
        {"name": "gateway-2", "alive": True, "last_seen": "2026-01-01T00:00:00Z"},
        {"name": "gateway-3", "alive": False, "last_seen": "2026-01-01T00:00:00Z"},
    ]
    monkeypatch.setattr(traffic, "ask", lambda *_: {"items": gateways})
    one = patient(tmp_path, gateways=(GatewayAddress("gateway-1", "127.0.0.1", 1883),))
    one.data.api_token.write_text("secret")
    details = found(traffic.look_at_gone_gateways, one)
    assert len(details[Level.WARNING]) == 1
    assert details[Level.WARNING][0].startswith("gateway-3 is away since 2026-01-01")


def test_rules_that_do_not_run_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = {
        ("acme", "failed"): [{"id": "hot", "error": "made by ann, who is viewer"}],
        ("default", "paused"): [{"id": "cold", "error": "paused: it failed again and again"}],
    }

    def answer(_patient: Patient, path: str, _token: str) -> Any:
        asked = urlsplit(path)
        fields = dict(parse_qsl(asked.query))
        if asked.path == "/tenants":
            names = {"": ("acme", "more"), "more": ("default", None)}
            name, cursor = names[fields.get("cursor", "")]
            return {"items": [{"name": name, "rules": 2}], "next_cursor": cursor}
        return {"items": stopped.get((fields["tenant"], fields["state"]), [])}

    monkeypatch.setattr(rules, "ask", answer)
    one = patient(tmp_path)
    assert not any(found(rules.look_at_rules, one).values()), "there is no token"
    one.data.api_token.write_text("secret")
    assert found(rules.look_at_rules, one)[Level.WARNING] == [
        "rule hot of the tenant acme is failed: made by ann, who is viewer",
        "rule cold of the tenant default is paused: paused: it failed again and again",
    ]
    stopped.clear()
    assert found(rules.look_at_rules, one)[Level.OK] == ["none of 4 is paused or failed"]


def test_an_api_and_metrics_that_do_not_answer_are_found(tmp_path: Path) -> None:
    metrics = {"api": "http://127.0.0.1:1/metrics"}
    one = patient(tmp_path, api_url="http://127.0.0.1:1", metrics=metrics)
    assert "its token cannot be read" in found(traffic.look_at_api, one)[Level.ERROR][0]
    one.data.api_token.write_text("secret")
    assert "does not answer" in found(traffic.look_at_api, one)[Level.ERROR][0]
    assert "serves none at" in found(traffic.look_at_metrics, one)[Level.WARNING][0]


@pytest.mark.anyio
async def test_a_message_goes_through_each_gateway(tmp_path: Path) -> None:
    async with running_gateway() as harness:
        address = GatewayAddress("gateway-1", "127.0.0.1", harness.port)
        one = patient(tmp_path, gateways=(address,))
        details = await asyncio.to_thread(found, traffic.look_at_gateways, one)
        assert details[Level.OK][0].startswith("gateway-1: acknowledged in ")
        harness.router.pause()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(traffic, "ANSWER_SECONDS", 0.3)
            details = await asyncio.to_thread(found, traffic.look_at_gateways, one)
        assert "expected SUBACK (is the router running?)" in details[Level.ERROR][0]
        harness.router.resume()


@pytest.mark.anyio
async def test_a_gateway_that_asks_for_a_name_is_no_error(tmp_path: Path) -> None:
    async with running_gateway(allow_anonymous=False) as harness:
        address = GatewayAddress("gateway-1", "127.0.0.1", harness.port)
        one = patient(tmp_path, gateways=(address,))
        details = await asyncio.to_thread(found, traffic.look_at_gateways, one)
        assert "refuses clients without a user" in details[Level.WARNING][0]


def test_a_check_that_fails_itself_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_folder: Path) -> tuple[int, int]:
        raise ZeroDivisionError

    monkeypatch.setattr(machine, "size_and_files", fail)
    findings = {one.check: one for one in examine(Patient(DataDirectory(tmp_path), None))}
    assert findings["disk"].detail == "the check itself failed: ZeroDivisionError()"


def test_the_command_says_it_to_programs_and_by_its_exit_code(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--data-dir", str(tmp_path), "--json"])
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["level"] == "error"
    assert answer["findings"][0]["check"] == "system"
    result = CliRunner().invoke(command, ["--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "error    system       no system runs on" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("1 errors")


def test_state_of_a_dead_supervisor_is_no_running_system(tmp_path: Path) -> None:
    state: SystemState = replace(make_state(), start_ticks=1)
    replace_file(tmp_path / STATE_FILE, state.to_json())
    assert new_patient(tmp_path)[0].state is None


def test_a_system_without_balancer_is_not_asked_for_one(tmp_path: Path) -> None:
    assert not any(found(traffic.look_at_balancer, patient(tmp_path)).values())


def is_drained(plane: ControlPlane, node: str) -> bool:
    """Tell whether proxies are to give a node no clients."""
    return not any(one.takes_clients for one in plane.snapshot.nodes if one.name == node)


def test_what_is_wrong_with_a_balancer_is_found(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    one = patient(tmp_path, entrances=(f"mqtt://127.0.0.1:{port}",))
    (silent,) = found(traffic.look_at_balancer, one)[Level.ERROR]
    assert "no balancer answers" in silent
    nodes = [{"name": name, "host": "127.0.0.1", "port": port} for name in ("a", "b", "c")]
    proxies = [{"name": "proxy-1", "runtime_api": str(tmp_path / "nowhere.sock")}]
    with served_plane(tmp_path, nodes=nodes, proxies=proxies, slots=2) as plane:
        plane.fleet.drain("b", is_draining=True)
        asyncio.run(until(lambda: is_drained(plane, "b")))
        details = found(traffic.look_at_balancer, one)
    assert details[Level.ERROR][0].startswith("proxy proxy-1: ")
    assert details[Level.ERROR][-1].startswith(f"mqtt://127.0.0.1:{port}: ")
    assert details[Level.WARNING] == ["b is drained", "no slot for c"]
    assert not details[Level.OK]


def gateway_of(reachable: list[str], *, asks_who: bool, has_rights: bool) -> ProcessReport:
    said = {"reachable": reachable, "asks_who": asks_who, "has_rights": has_rights}
    return ProcessReport("gateway-1", 8, True, "serving", figures={"access": said})


@pytest.mark.parametrize(
    ("asks_who", "has_rights", "level", "words"),
    [
        (False, False, Level.WARNING, "clients need no login"),
        (True, False, Level.WARNING, "publish and read everything"),
        (True, True, Level.OK, "goes by rules"),
    ],
)
def test_who_is_let_in_from_other_machines_is_found(
    tmp_path: Path, asks_who: bool, has_rights: bool, level: Level, words: str
) -> None:
    address = (GatewayAddress("gateway-1", "127.0.0.1", 1883),)
    with socket.create_server(("0.0.0.0", 0)) as proxy:
        entrance = f"mqtt://127.0.0.1:{proxy.getsockname()[1]}"  # as this machine reaches it
        for urls, entrances in ((["mqtt://*:1883"], ()), ([], (entrance,))):
            report = gateway_of(urls, asks_who=asks_who, has_rights=has_rights)
            one = patient(tmp_path, report, gateways=address, entrances=entrances)
            details = found(access.look_at_access, one)
            (detail,) = details.pop(level)
            assert words in detail
            assert not any(details.values())


def test_an_api_without_tls_that_other_machines_reach_is_found(tmp_path: Path) -> None:
    url = "http://192.0.2.7:8080"
    (warning,) = found(access.look_at_access, patient(tmp_path, api_url=url))[Level.WARNING]
    assert "go there unencrypted" in warning
    for more in ({"api_certificate": "/a.pem"}, {"api_url": "http://[::1]:8080"}):
        one = patient(tmp_path, **{"api_url": url, **more})
        assert not any(found(access.look_at_access, one).values())


def test_a_gateway_that_other_machines_do_not_reach_may_be_open(tmp_path: Path) -> None:
    address = (GatewayAddress("gateway-1", "127.0.0.1", 1883),)
    report = gateway_of([], asks_who=False, has_rights=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        entrances = (f"ws://127.0.0.1:{proxy.getsockname()[1]}/mqtt",)
        one = patient(tmp_path, report, gateways=address, entrances=entrances)
        details = found(access.look_at_access, one)
    assert details[Level.OK] == ["other machines do not reach 1 gateways"]
    silent = patient(tmp_path, gateways=address)
    assert not any(found(access.look_at_access, silent).values()), "it has said nothing yet"


@pytest.mark.anyio
async def test_a_gateway_says_who_may_come_from_where() -> None:
    async with running_gateway(host="", allow_anonymous=True) as harness:
        said = harness.gateway.status.figures()["access"]
    assert said == {
        "reachable": [f"mqtt://*:{harness.port}"],
        "asks_who": False,
        "has_rights": False,
    }


def test_neighbours_that_are_away_or_have_lost_something_are_found(tmp_path: Path) -> None:
    def site(number: int, **changes: Any) -> dict[str, Any]:
        link = {"site": number, "there": True, "reason": "", "behind": 0, "gone": 0}
        return link | changes

    def look(*links: dict[str, Any], **more: Any) -> dict[Level, list[str]]:
        figures = {"links": list(links), **more}
        report = ProcessReport("federation", 5, True, "", figures=figures)
        return found(traffic.look_at_federation, patient(tmp_path, report))

    assert not any(found(traffic.look_at_federation, patient(tmp_path)).values())
    assert look(site(2), site(3))[Level.OK] == ["2 of 2 neighbours there"]
    away = site(3, there=False, reason="connection refused", behind=7)
    details = look(site(2), away, site(4, behind=20_000), site(5, gone=1))
    assert details[Level.WARNING] == [
        "site 3 is away (connection refused), 7 records behind",
        "site 4 is 20000 records behind",
    ]
    assert details[Level.ERROR] == ["site 5 was away for longer than the log is kept: 1 times"]
    assert details[Level.OK] == ["3 of 4 neighbours there"]
    overlay = {"apart": [3, 7, 8], "sites": [{"site": one} for one in range(1, 9)]}
    details = look(away, overlay=overlay)
    assert details[Level.WARNING][1:] == ["announced by others, but not reachable: site 7, 8"]
    assert details[Level.OK] == ["8 sites are on the map"]
