"""The experiments with HAProxy, the control plane and clients, with a fiftieth of these."""

import pytest

from lab import placing
from lab.placing import measure_placing
from lab.waves import EXPERIMENTS

pytestmark = [pytest.mark.campaign("it measures"), pytest.mark.programs]


def test_clients_are_served_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "HASTE", 60.0)
    monkeypatch.setattr(placing, "SENT", 0.01)
    monkeypatch.setattr(placing, "EXPERIMENTS", EXPERIMENTS[:2])
    figures = {one.name: value for one, value in measure_placing(1, ["predicted"], 0.02).items()}
    assert len(figures) == 2 * 6 + 1
    total = 0.0
    for name in EXPERIMENTS[:2]:
        begin = f"placing by predicted, {name}"
        assert figures[f"{begin}, of these lost"] == figures[f"{begin}, lost"] == 0
        assert figures[f"{begin}, sent"] > 10
        assert 1 <= figures[f"{begin}, copies per message"] <= 3
        assert figures[f"{begin}, delivery p99"] >= 1
        total += figures[f"{begin}, deviation of CPU"]
    # Clients are at all nodes, and at none all of them.
    assert 0 < total == figures["placing by predicted, deviation of CPU, all three"] < 60
