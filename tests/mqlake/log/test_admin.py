"""A cluster that starts just now is not whole at once."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mqlake.errors import LogError
from mqlake.log import admin
from mqlake.log.durability import Durability

NAMED = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"


def has(monkeypatch: pytest.MonkeyPatch, counts: Iterator[int]) -> None:
    """Let a cluster have so many brokers, one figure for each time it is asked."""
    monkeypatch.setattr(
        admin._Admin, "_metadata", lambda *_: SimpleNamespace(brokers=range(next(counts)))
    )
    monkeypatch.setattr(admin, "RETRY_SECONDS", 0.001)


def test_brokers_that_are_named_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([1, 2, 2, 3])
    has(monkeypatch, counts)
    admin._Admin(NAMED, 60.0).check_brokers(Durability.D2)
    assert list(counts) == []


def test_brokers_that_nobody_named_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for servers in ("127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"):
        has(monkeypatch, iter([2]))
        with pytest.raises(LogError, match=f"D2 takes 3 brokers: {servers} has 2"):
            admin._Admin(servers, 60.0).check_brokers(Durability.D2)


def test_brokers_that_do_not_come_are_missed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, iter([2] * 1_000))
    with pytest.raises(LogError, match=r"D2 takes 3 brokers: .* has 2"):
        admin._Admin(NAMED, 0.02).check_brokers(Durability.D2)
