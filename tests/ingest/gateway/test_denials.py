"""What was denied, added up; who is told in `test_rights.py`."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingest.gateway.base import denials as denials_module
from ingest.gateway.base.client import Client
from ingest.gateway.base.counters import GatewayCounters
from ingest.gateway.base.denials import Denials


class Told:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def add(self, event: str, tenant: str, client_id: str, **fields: Any) -> None:
        assert event == "client.denied"
        self.events.append((tenant, client_id, fields))


def client(client_id: str) -> Client:
    found = SimpleNamespace(tenant="t", client_id=client_id, username="u", address="::1")
    return cast("Client", found)


def test_equal_attempts_are_one_event() -> None:
    told, counters = Told(), GatewayCounters()
    denials = Denials(counters, told)  # type: ignore[arg-type]
    for _ in range(3):
        denials.add(client("c"), "publish", "no", "a/b")
    denials.add(client("c"), "subscribe", "no", "a/b")
    assert not told.events
    denials.record()
    denials.record()
    fields = {"reason": "no", "username": "u", "address": "::1", "topic": "a/b"}
    assert told.events == [
        ("t", "c", {**fields, "action": "publish", "count": 3}),
        ("t", "c", {**fields, "action": "subscribe", "count": 1}),
    ]
    assert counters.attempts_denied == 4


def test_beyond_a_number_of_kinds_attempts_are_told_without_their_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(denials_module, "MAX_KINDS", 2)
    told = Told()
    denials = Denials(GatewayCounters(), told)  # type: ignore[arg-type]
    for number in range(5):
        denials.add(client(f"c{number % 4}"), "connect", "no")
    denials.record()
    assert [(name, fields["count"]) for _, name, fields in told.events] == [
        ("c0", 2),
        ("c1", 1),
        ("", 2),
    ]
    assert told.events[-1][2]["username"] is None


def test_what_a_stranger_has_made_long_is_told_in_short() -> None:
    told = Told()
    denials = Denials(GatewayCounters(), told)  # type: ignore[arg-type]
    denials.add(client("c" * 65_535), "publish", "no", "t" * 65_535)
    denials.record()
    ((_, name, fields),) = told.events
    assert name == "c" * 256 + "…"
    assert fields["topic"] == "t" * 256 + "…"
