"""The published experiments, with a fifth of their clients."""

import pytest

from ingest.balancer.placement import STRATEGIES, Strategy
from lab.balancing import measure_balancing
from lab.experiments import run
from lab.waves import EXPERIMENTS, PUBLISHED, waves_of

SCALE = 0.2


def total(strategy: Strategy, seed: int) -> float:
    return sum(
        run(number, strategy, scale=SCALE, seed=seed).deviation for number in range(len(PUBLISHED))
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_predicted_is_the_most_even(seed: int) -> None:
    ours = total("predicted", seed)
    assert all(ours < total(one, seed) for one in STRATEGIES if one != "predicted")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_seed_is_the_same_run_and_loses_nothing(strategy: Strategy) -> None:
    first = run(1, strategy, scale=SCALE, seed=3)
    assert first == run(1, strategy, scale=SCALE, seed=3)
    assert first != run(1, strategy, scale=SCALE, seed=4)
    assert first.lost_percent == 0
    assert first.p99_ms >= 1
    assert 1 <= first.copies <= 3


def test_a_node_with_too_much_to_do_loses_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.waves.FULL", 2.0)
    outcome = run(1, "round_robin", scale=SCALE, seed=1)
    assert outcome.lost_percent > 1
    assert outcome.p99_ms > 1_000


def test_waves_are_as_published() -> None:
    from random import Random

    random = Random(1)
    assert [len(wave.clients) for wave in waves_of(0, 1.0, random)] == [5_000]
    light, heavy = waves_of(1, 1.0, random)
    assert (len(light.clients), len(heavy.clients)) == (5_000, 600)
    assert sum(bool(one.subscribed) for one in light.clients) == 3_000
    assert all(40 <= one.rate <= 67 for one in heavy.clients)
    assert [len(wave.clients) for wave in waves_of(2, 1.0, random)] == [600, 5_000]


def test_groups_that_talk_are_together_with_predicted_alone() -> None:
    ours, chance = (run(3, one, scale=0.5, seed=1) for one in ("predicted", "weighted_cpu"))
    assert ours.copies < 1.6 < 2.2 < chance.copies
    assert ours.forwarding_percent < chance.forwarding_percent / 2
    assert ours.p99_ms < chance.p99_ms


def test_the_benchmark_names_all_of_it() -> None:
    names = [figure.name for figure in measure_balancing(1, scale=0.02)]
    assert len(names) == len(set(names)) == len(STRATEGIES) * (5 * len(EXPERIMENTS) + 1)
