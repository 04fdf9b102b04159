"""Scenarios of one target side by side: each job is a process with systems of its own.

Scenarios wait most of their time. What is measured while others run is no figure to compare.
"""

import json
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any

from resilience import campaign
from resilience.definition import Definition
from resilience.plan import Scenario

Tell = Callable[[str], None]
Work = Sequence[tuple[Scenario, campaign.Settings]]


def split(work: Work, count: int) -> list[Work]:
    """Return at most `count` parts; scenarios that can share a system are together.

    The largest of these first, each to the part that has the fewest.
    """
    parts: list[list[tuple[Scenario, campaign.Settings]]] = [[] for _ in range(count)]

    def needs(one: tuple[Scenario, campaign.Settings]) -> list[str]:
        return campaign.order_of(one[0])

    together = [list(group) for _, group in groupby(sorted(work, key=needs), key=needs)]
    for group in sorted(together, key=len, reverse=True):
        min(parts, key=len).extend(group)
    return [part for part in parts if part]


def run(definition: Definition, work: Work, tell: Tell) -> None:
    """Run scenarios one after the other; `campaign.run` keeps their results."""
    with closing(campaign.Stage(definition)) as stage:
        for scenario, settings in work:
            campaign.run(scenario, definition, settings, tell, stage)


def run_all(definition: Definition, work: Work, count: int, tell: Tell) -> list[dict[str, Any]]:
    """Run scenarios in so many jobs; return the results of those that came to an end."""
    for _, settings in work:
        (settings.folder / campaign.RESULT).unlink(missing_ok=True)
    parts = split(work, count)
    if len(parts) < 2:
        run(definition, work, tell)
    else:
        _run_apart(definition, parts, tell)
    paths = (settings.folder / campaign.RESULT for _, settings in work)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def _run_apart(definition: Definition, parts: Sequence[Work], tell: Tell) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_job, args=(definition, part, tell)) for part in parts]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    finally:
        # They stop their systems first.
        for process in processes:
            if process.is_alive():
                process.terminate()
                process.join()


def _job(definition: Definition, work: Work, tell: Tell) -> None:
    signal.signal(signal.SIGTERM, lambda number, _: _end(128 + number))
    run(definition, work, tell)


def _end(code: int) -> None:
    # As an exception, so that the parts of a target are stopped before we are.
    raise SystemExit(code)
