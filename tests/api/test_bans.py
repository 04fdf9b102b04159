"""Bans over the API: records of the log, which every gateway follows."""

import json
from typing import Any

import pytest

from api.tenants.bans import MaterialisedBans
from api.wiring.resources import BANS
from mqlake.bans import ban_key, decode_ban
from mqlake.records.messages import GATEWAYS
from tests.api.conftest import Api, take
from tests.api.test_access import bearer, make_key

BAN = {
    "client_ids": ["evil-*"],
    "users": ["mallory"],
    "addresses": ["203.0.113.0/24", "2001:db8::1"],
    "tokens": ["stolen-7"],
    "until": "2040-01-01T00:00:00Z",
    "reason": "floods",
}


def ban(api: Api, **fields: Any) -> Any:
    answer = api.request("POST", "/bans", json=fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_ban_is_made_shown_and_lifted(api: Api) -> None:
    made = ban(api, **BAN)
    assert made == {
        **BAN,
        "id": made["id"],
        "clients": [],
        "offence": "",
        "addresses": ["203.0.113.0/24", "2001:db8::1/128"],
        "created_at": "2020-09-13T12:26:40Z",
        "created_by": "api-token",
        "over": False,
    }
    (record,) = api.log.records
    assert (record.log_topic, record.key) == (GATEWAYS, ban_key(made["id"]))
    kept = decode_ban(record.value or b"")
    assert (kept.users, kept.by) == (("mallory",), "api-token")
    assert api.get("/bans")["items"] == [made]
    assert api.request("DELETE", f"/bans/{made['id']}").status_code == 204
    assert (api.log.records[-1].key, api.log.records[-1].value) == (record.key, None)
    assert api.get("/bans")["items"] == []
    assert api.request("DELETE", f"/bans/{made['id']}").status_code == 404


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"users": []},
        {"users": [""]},
        {"addresses": ["10.0.0.1/8"]},
        {"addresses": ["nowhere"]},
        {"users": ["a"], "until": "2040-01-01T00:00:00"},
        {"users": ["a"] * 101},
        {"users": ["a"], "client_id": "x"},
        {"users": ["a"], "reason": "x" * 201},
    ],
)
def test_what_is_no_ban_is_refused(api: Api, fields: dict[str, Any]) -> None:
    assert api.request("POST", "/bans", json=fields).status_code == 422
    assert not api.log.records


def test_bans_that_are_over_are_forgotten_with_the_next_one(api: Api) -> None:
    old = ban(api, users=["a"], until="2020-09-13T12:27:00Z")
    api.clock.advance(60)
    assert api.get("/bans")["items"] == [{**old, "over": True}]
    new = ban(api, users=["b"])
    assert [one["id"] for one in api.get("/bans")["items"]] == [new["id"]]


def test_there_are_only_so_many(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.tenants.bans.MAX_BANS", 2)
    for name in "ab":
        ban(api, users=[name])
    answer = api.request("POST", "/bans", json={"users": ["c"]})
    assert (answer.status_code, len(api.log.records)) == (409, 2)


def test_bans_are_listed_a_page_at_a_time(api: Api) -> None:
    made = sorted(ban(api, users=[name])["id"] for name in "abc")
    first = api.get("/bans", limit=2)
    rest = api.get("/bans", limit=2, cursor=first["next_cursor"])
    assert [one["id"] for one in first["items"] + rest["items"]] == made


@pytest.mark.parametrize("role", ["viewer", "editor"])
def test_administrators_alone_ban(api: Api, role: str) -> None:
    key = make_key(api, role)["key"]
    found = ban(api, users=["a"])
    assert api.request("GET", "/bans", bearer(key)).status_code == 200
    for method, path in (("POST", "/bans"), ("DELETE", f"/bans/{found['id']}")):
        answer = api.request(method, path, bearer(key), json={"users": ["b"]})
        assert answer.status_code == 403


def test_what_another_process_of_the_api_says_counts() -> None:
    view = MaterialisedBans()
    value = {"v": 2, "users": ["a"], "at": 1, "by": "x"}
    assert take(view, ban_key("1"), json.dumps(value).encode()) == []
    assert take(view, b"gateway-1", b"{}") == []
    assert take(view, b"\0version", b"{}") == []
    view.complete()
    assert [name for name, _ in view.all()] == ["1"]
    assert len(take(view, ban_key("2"), b"{}")) == 1
    assert take(view, ban_key("1"), None) == []
    assert view.all() == []
    view.forget()
    assert not view.is_complete


def test_nobody_is_told_of_part_of_the_bans(api: Api) -> None:
    api.services.kept[BANS].view.forget()
    for method in ("GET", "POST"):
        answer = api.request(method, "/bans", json={"users": ["a"]})
        assert answer.status_code == 503


def test_a_ban_is_no_gateway(api: Api) -> None:
    api.gateways.receive(ban_key("1"), b"{}", is_old=False)
    assert api.get("/gateways")["items"] == []
