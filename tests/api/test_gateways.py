import json
from pathlib import Path
from typing import Any

import pytest

from api.clients.presence import Gateways
from api.log.appending import LogAppender
from api.web.problems import MEDIA_TYPE
from mqlake.clock import ManualClock
from mqlake.errors import InvalidRecord, LogError
from mqlake.records.messages import CONTROL_KEY_PREFIX, delivery_topic
from tests.api.conftest import Api


def asked(api: Api) -> list[tuple[str, bytes, Any]]:
    return [(one.log_topic, one.key, json.loads(one.value or b"")) for one in api.log.records]


def test_a_gateway_is_what_it_said_last(api: Api) -> None:
    api.hear(
        "gateway-1", site="local", state="draining", clients=3, listeners=["mqtt://127.0.0.1:1883"]
    )
    assert api.get("/gateways") == {
        "items": [
            {
                "name": "gateway-1",
                "site": "local",
                "alive": True,
                "state": "draining",
                "clients": 3,
                "listeners": ["mqtt://127.0.0.1:1883"],
                "last_seen": "2020-09-13T12:26:40Z",
                "clock_ahead_seconds": None,
                "rights_version": 0,
                "incarnation": "1",
            }
        ],
        "next_cursor": None,
    }
    assert api.get("/gateways/gateway-1") == api.get("/gateways")["items"][0]


def test_a_gateway_that_is_silent_is_not_alive(api: Api) -> None:
    api.hear("gateway-1")
    api.clock.advance(2.9)
    assert api.get("/gateways/gateway-1")["alive"]
    api.clock.advance(0.2)
    assert not api.get("/gateways/gateway-1")["alive"]
    api.hear("gateway-1")
    assert api.get("/gateways/gateway-1")["alive"]


def test_a_gateway_that_has_left_is_unknown(api: Api) -> None:
    api.hear("gateway-1")
    api.gateways.receive(b"gateway-1", None, is_old=False)
    answer = api.request("GET", "/gateways/gateway-1")
    assert (answer.status_code, answer.json()["detail"]) == (404, "no gateway 'gateway-1'")
    assert api.get("/gateways") == {"items": [], "next_cursor": None}


def test_what_was_said_long_ago_is_old_whenever_it_is_read() -> None:
    clock = ManualClock()
    gateways = Gateways(clock)
    for at_ms in (clock.now_ms() - 9_000, clock.now_ms() - 4_000):
        gateways.receive(b"g", json.dumps({"at": at_ms}).encode(), is_old=True)
        assert not gateways.all()[0].is_alive
    gateways.receive(b"g", json.dumps({"at": clock.now_ms() + 9_000}).encode(), is_old=True)
    assert gateways.all()[0].is_alive
    gateways.forget()
    assert gateways.all() == []


def test_placement_says_who_owns_which_shard(api: Api) -> None:
    assert api.get("/placement") == {"shards": 0, "items": []}
    api.hear("gateway-1", shards=[2], shard_count=3, addresses={"tcp": "one:1883"})
    api.hear("gateway-3", shards=[1], shard_count=3)
    api.clock.advance(4.0)
    api.hear("gateway-1", shards=[2], shard_count=3, addresses={"tcp": "one:1883"})
    api.hear("gateway-2", shards=[0], shard_count=3, addresses={})
    assert api.get("/placement") == {
        "shards": 3,
        "items": [
            {"shard": 0, "gateway": "gateway-2", "addresses": {}},
            {"shard": 1, "gateway": None, "addresses": {}},
            {"shard": 2, "gateway": "gateway-1", "addresses": {"tcp": "one:1883"}},
        ],
    }


def test_a_clock_is_judged_by_the_word_that_came_fastest(api: Api) -> None:
    def hear(at_ms: int, logged_at_ms: int, run: str = "1") -> object:
        value = json.dumps({"at": at_ms, "incarnation": run}).encode()
        api.gateways.receive(b"g", value, is_old=True, logged_at_ms=logged_at_ms)
        return api.get("/gateways/g")["clock_ahead_seconds"]

    assert hear(10_000, 7_900) == 2.1
    assert hear(11_000, 11_700) == 2.1  # it waited for the log
    assert hear(12_000, 9_800) == 2.2
    assert hear(12_000, 15_010, run="2") == -3.01


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"at":"x"}', b"null"])
def test_a_word_of_another_form_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord, match="gateway record"):
        Gateways(ManualClock()).receive(b"g", value, is_old=False)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_unknown_gateway_is_a_problem_that_names_those_there_are(api: Api, method: str) -> None:
    for gateway in ("gateway-1", "gateway-2"):
        api.hear(gateway)
    answer = api.request(method, "/gateways/gateway-9/drain")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert answer.json()["detail"] == "no gateway 'gateway-9'; there are: gateway-1, gateway-2"


def test_reload_is_asked_for(api: Api) -> None:
    api.hear("gateway-1")
    answer = api.request("POST", "/gateways/gateway-1/reload")
    assert answer.status_code == 202
    assert answer.json() == {"gateway": "gateway-1", "action": "reload"}
    assert asked(api) == [(delivery_topic("gateway-1"), CONTROL_KEY_PREFIX + b"reload", {})]


def test_drain_has_defaults(api: Api) -> None:
    api.hear("gateway-1")
    answer = api.request("POST", "/gateways/gateway-1/drain")
    assert (answer.status_code, answer.json()["action"]) == (202, "drain")
    (record,) = asked(api)
    assert record[1:] == (
        CONTROL_KEY_PREFIX + b"drain",
        {"connections_per_second": 50, "server_reference": None, "moved": False},
    )


def test_drain_passes_on_what_is_asked_for_and_is_undone(api: Api) -> None:
    api.hear("gateway-1")
    wanted = {"connections_per_second": 7.5, "server_reference": "other:1883", "moved": True}
    assert api.request("POST", "/gateways/gateway-1/drain", json=wanted).status_code == 202
    assert api.request("DELETE", "/gateways/gateway-1/drain").json()["action"] == "serve"
    drain, serve = asked(api)
    assert drain[2] == wanted
    assert serve == (delivery_topic("gateway-1"), CONTROL_KEY_PREFIX + b"serve", {})


@pytest.mark.parametrize(
    "wanted", [{"connections_per_second": 0}, {"rate": 1}, {"server_reference": 1}]
)
def test_a_drain_that_makes_no_sense_is_refused(api: Api, wanted: dict[str, Any]) -> None:
    assert api.request("POST", "/gateways/gateway-1/drain", json=wanted).status_code == 422
    assert api.log.records == []


def test_a_log_that_does_not_answer_is_a_problem(api: Api) -> None:
    api.hear("gateway-1")
    api.put_in(log=LogAppender(api.log.servers, timeout_seconds=0.2))
    answer = api.request("POST", "/gateways/gateway-1/reload")
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("control record for gateway-1: ")


def test_a_log_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    log = LogAppender("127.0.0.1:1", timeout_seconds=0.2)
    with pytest.raises(LogError, match="a letter"):
        log.append("t", b"k", b"", what="a letter")
