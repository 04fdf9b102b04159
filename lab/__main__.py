"""`python -m lab balancing` or `placing`: repeat the published experiments, print medians."""

import sys
from collections.abc import Callable
from typing import Final

from rich.console import Console

from bench.results.figures import Figures
from bench.results.report import summarise, to_table
from lab import balancing, placing

EXPERIMENTS: Final[dict[str, tuple[Callable[[int], Figures], int]]] = {
    "balancing": (balancing.measure_balancing, balancing.RUNS),
    "placing": (placing.measure_placing, placing.RUNS),
}
"""Name -> what measures it with a seed, and how many seeds."""


def main(arguments: list[str]) -> int:
    """Run the experiment that is named."""
    if len(arguments) != 1 or arguments[0] not in EXPERIMENTS:
        sys.stderr.write(f"usage: python -m lab {'|'.join(EXPERIMENTS)}\n")
        return 2
    measure, runs = EXPERIMENTS[arguments[0]]
    Console().print(to_table(summarise([measure(seed) for seed in range(runs)])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
