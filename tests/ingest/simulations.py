"""How many simulations a test runs: some in each run of the suite, more when they are asked for."""

import os


def simulations_wanted(default: int) -> int:
    """Return MQLAKE_SIMULATIONS, or how many fit into a test."""
    return int(os.environ.get("MQLAKE_SIMULATIONS", str(default)))
