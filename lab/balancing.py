"""How evenly, and with which delays, each strategy of the balancer places clients: by a model."""

from typing import Final

from bench.results.figures import Figures, figure
from ingest.balancer.placement import STRATEGIES, Strategy
from lab.experiments import run
from lab.waves import EXPERIMENTS, PUBLISHED

RUNS: Final = 5
NAMES: Final[dict[Strategy, str]] = {one: one.replace("_", " ") for one in STRATEGIES}


def measure_balancing(seed: int, scale: float = 1.0) -> Figures:
    """Repeat the published experiments; `lab.experiments` says how.

    Args:
        seed: Seed of all random choices.
        scale: Part of the published numbers of clients.
    """
    figures: Figures = {}
    for strategy in STRATEGIES:
        outcomes = [
            run(number, strategy, scale=scale, seed=seed) for number in range(len(EXPERIMENTS))
        ]
        begin = f"balancing by {NAMES[strategy]}"
        for name, outcome in zip(EXPERIMENTS, outcomes, strict=True):
            of_one = f"{begin}, {name}"
            figures[figure(f"{of_one}, deviation of CPU", "points")] = outcome.deviation
            figures[figure(f"{of_one}, lost", "%")] = outcome.lost_percent
            figures[figure(f"{of_one}, delivery p99", "model ms")] = outcome.p99_ms
            figures[figure(f"{of_one}, copies per message", "")] = outcome.copies
            forwarding = figure(f"{of_one}, work of copies beyond the first", "%")
            figures[forwarding] = outcome.forwarding_percent
        total = sum(outcome.deviation for outcome in outcomes[: len(PUBLISHED)])
        figures[figure(f"{begin}, deviation of CPU, all three", "points")] = total
    return figures
