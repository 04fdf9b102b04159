import json
from dataclasses import replace

from api.clients.presence import Gateways
from mqlake.clock import ManualClock
from mqlake.processes.latency import BOUNDS_MS, CLASSES
from mqlake.processes.status import STATE_FILE, load_state, replace_file
from tests.api.conftest import Api


def test_metrics_add_up_what_gateways_say(api: Api) -> None:
    for number in range(3):
        for gateway, step in (("gateway-1", 100), ("gateway-2", 10)):
            counters = {"messages_received": number * step, "dropped_expired": number}
            api.hear(gateway, clients=2, sessions=3, subscriptions=4, counters=counters)
        api.clock.advance(0.5)
    found = api.get("/metrics")
    assert (found["clients"], found["sessions"], found["subscriptions"]) == (4, 6, 8)
    assert found["messages_received_per_second"] == 220
    assert found["dropped_per_second"] == 4
    first = found["gateways"][0]
    assert first["per_second"] == {"messages_received": 200, "dropped_expired": 2}
    assert [one["name"] for one in found["processes"]] == ["log", "router"]
    assert found["rules"] == {"rules": 0, "running": 0, "matched_per_second": 0}


def test_copies_are_of_the_messages_that_the_log_took(api: Api) -> None:
    assert api.get("/metrics")["copies_per_message"] is None
    for number in range(3):
        for gateway in ("gateway-1", "gateway-2"):
            counters = {"messages_stored": number * 10, "deliveries_received": number * 15}
            api.hear(gateway, counters=counters)
        api.clock.advance(0.5)
    assert api.get("/metrics")["copies_per_message"] == 1.5


def test_a_gateway_that_started_again_counts_anew(api: Api) -> None:
    api.hear("gateway-1", counters={"messages_received": 1_000})
    api.clock.advance(0.5)
    api.hear("gateway-1", incarnation="2", counters={"messages_received": 5})
    assert api.get("/metrics")["messages_received_per_second"] == 0


def test_a_dead_gateway_does_nothing(api: Api) -> None:
    for number in range(2):
        api.hear("gateway-1", clients=5, counters={"messages_received": number})
        api.clock.advance(0.5)
    api.clock.advance(5)
    found = api.get("/metrics")
    assert (found["clients"], found["messages_received_per_second"]) == (0, 0)
    assert not found["gateways"][0]["alive"]


def stage(**by_bound: int) -> list[int]:
    """Return counts with so many at the bound of each class."""
    counts = [0] * CLASSES
    for bound, count in by_bound.items():
        counts[BOUNDS_MS.index(float(bound.removeprefix("ms_")))] = count
    return counts


def test_latencies_are_of_the_last_seconds_and_of_all_gateways() -> None:
    clock = ManualClock()
    gateways = Gateways(clock)
    for number in range(30):
        for name, share in (("gateway-1", 3), ("gateway-2", 1)):
            # What was slow is long ago.
            deliver = stage(ms_5000=100 if number else 0, ms_4=share * 10 * number)
            said = {"at": clock.now_ms(), "incarnation": "1", "latency": {"deliver": deliver}}
            gateways.receive(name.encode(), json.dumps(said).encode(), is_old=False)
        clock.advance(0.5)
    assert {one.name: sum(one.latency["deliver"]) for one in gateways.all()} == {
        "gateway-1": 600,
        "gateway-2": 200,
    }


def test_a_gateway_shows_its_percentiles(api: Api) -> None:
    for number in range(3):
        latency = {
            "accept": stage(ms_2=100 * number),
            "deliver": stage(ms_4=95 * number, ms_50=5 * number),
        }
        api.hear("gateway-1", latency=latency)
        api.clock.advance(0.5)
    found = api.get("/metrics")
    nothing = {"messages": 0, "p50_ms": None, "p95_ms": None, "p99_ms": None}
    assert found["latency"] == found["gateways"][0]["latency"]
    assert found["latency"]["accept"] == {
        "messages": 200,
        "p50_ms": 1.75,
        "p95_ms": 1.975,
        "p99_ms": 1.995,
    }
    assert found["latency"]["route"] == nothing
    assert found["latency"]["deliver"]["p95_ms"] == 4.0
    assert found["latency"]["deliver"]["p99_ms"] == 48.0
    api.clock.advance(5)
    found = api.get("/metrics")
    assert found["latency"]["accept"] == found["gateways"][0]["latency"]["accept"] == nothing


def test_queries_are_those_of_the_engine(api: Api) -> None:
    figures = {
        "queries": {
            "router": {"active": True, "real_time": True, "lag_records": 3, "restarts": 1},
            "w1": {"active": False, "tenant": "acme", "rule": "hot", "version": 2},
        }
    }
    state = load_state(api.data_dir)
    assert state is not None
    log, streaming = state.processes
    state = replace(state, processes=(log, replace(streaming, figures=figures)))
    replace_file(api.data_dir / STATE_FILE, state.to_json())
    router, run = api.get("/metrics")["queries"]
    assert router == {
        "name": "router",
        "tenant": None,
        "rule": None,
        "active": True,
        "real_time": True,
        "lag_records": 3,
        "input_rows_per_second": 0.0,
        "batch_ms": None,
        "state_rows": 0,
        "restarts": 1,
    }
    assert (run["tenant"], run["rule"], run["active"]) == ("acme", "hot", False)


def test_retained_messages_are_those_of_all_gateways(api: Api) -> None:
    state = load_state(api.data_dir)
    assert state is not None
    log, streaming = state.processes
    gateways = [
        replace(streaming, name=f"gateway-{number}", figures={"retained": number * 10})
        for number in (1, 2)
    ]
    state = replace(state, processes=(log, streaming, *gateways))
    replace_file(api.data_dir / STATE_FILE, state.to_json())
    assert api.get("/metrics")["retained"] == 30


def test_prometheus_finds_every_process(api: Api) -> None:
    state = load_state(api.data_dir)
    assert state is not None
    metrics = {"api": "http://127.0.0.1:9100/metrics", "rules": "http://[::1]:9101/metrics"}
    replace_file(api.data_dir / STATE_FILE, replace(state, metrics=metrics).to_json())
    assert api.get("/metrics/targets") == [
        {"targets": ["127.0.0.1:9100"], "labels": {"instance": "api"}},
        {"targets": ["[::1]:9101"], "labels": {"instance": "rules"}},
    ]
    assert api.get("/processes")["metrics"] == metrics
