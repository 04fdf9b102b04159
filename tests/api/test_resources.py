"""What is forgotten of a resource ends the start."""

from dataclasses import fields
from typing import Any

import pytest
from fastapi import APIRouter

from api import app
from api.audit.states import check_states
from api.routes.clients import bans
from api.wiring import dependencies
from api.wiring.kept import Resource
from api.wiring.resources import BANS, RESOURCES
from mqlake.records.messages import GATEWAYS
from tests.api.conftest import Api

DECLARED: dict[str, Any] = {one.name: getattr(BANS, one.name) for one in fields(BANS)}


@pytest.mark.parametrize("name", DECLARED)
def test_each_declaration_is_asked_for(name: str) -> None:
    known = {key: value for key, value in DECLARED.items() if key != name}
    with pytest.raises(TypeError, match=name):
        Resource(**known)


def test_a_change_says_its_state(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter(routes=list(bans.router.routes))
    router.add_api_route("/boards", lambda: None, methods=["POST"])
    router.add_api_route("/boards/{id:segment}", lambda: None, methods=["PUT"])
    monkeypatch.setattr(bans, "router", router)
    with pytest.raises(TypeError, match=r"says the state at \['/boards/\{id\}'\]"):
        app.create_app(api.services)


def test_a_state_is_of_a_path_that_is_there() -> None:
    with pytest.raises(TypeError, match=r"'/bans/\{id\}'.* where no route changes anything"):
        check_states(set())


def test_routes_ask_for_what_is_listed() -> None:
    boards = Resource(**DECLARED)
    with pytest.raises(
        TypeError, match=r"RESOURCES of api/wiring/resources.py lacks .*mqlake.gateways"
    ):
        dependencies.known(boards)
    with pytest.raises(TypeError, match="RESOURCES"):
        dependencies.changes(boards)


def test_each_view_follows_its_log_topic_once(api: Api) -> None:
    kept = api.services.kept
    followed = kept.followed()
    for resource in RESOURCES:
        assert followed[resource.log_topic].count(kept[resource].view) == 1
    assert len(followed[GATEWAYS]) == 3
    followers = app._followers(api.services)
    assert sorted(topic for one in followers for topic in one._kept) == sorted(
        {*followed, "mqlake.jobs", "mqlake.metrics", "mqlake.sessions"}
    )
