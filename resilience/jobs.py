"""Scenarios of one target side by side: each job is a process with systems of its own.

Scenarios that need a network, a clock or a disk of the tool's own come first, each kind in one job.
The rest run on any system: a job that has nothing else to do takes the next of them, last those
that leave a system spoiled. Scenarios wait most of their time, and starting a system takes the most
of the processor's: in quick runs a job has one system for all, with all that one of its scenarios
needs. Figures measured so are not to be compared.
"""

import json
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Any

from resilience import campaign
from resilience.definition import Definition
from resilience.plan import Scenario

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

Tell = Callable[[str], None]
One = tuple[Scenario, campaign.CampaignSettings]
Work = Sequence[One]


def split(work: Work, count: int) -> tuple[list[Work], Work]:
    """Return the first work of each of at most `count` jobs, and the work that any can take.

    Scenarios that can share a system are together. The largest of these groups first, each to the
    job that has the fewest; of the others those with most faults first, for they take longest.
    """

    def needs(one: One) -> list[str]:
        return campaign.order_of(one[0])

    groups = [list(group) for _, group in groupby(sorted(work, key=needs), key=needs)]
    parts: list[list[One]] = [[] for _ in range(min(count, len(groups)))]
    free: list[One] = []
    for group in sorted(groups, key=len, reverse=True):
        if needs(group[0]):
            min(parts, key=len).extend(group)
        else:
            free = sorted(group, key=_turn)
    return [*parts], free


def _turn(one: One) -> tuple[bool, int]:
    scenario, _ = one
    return campaign.spoils_what_it_runs_on(scenario), -campaign.fault_count(scenario)


def run(definition: Definition, work: Iterable[One], tell: Tell, bound: Work) -> None:
    """Run scenarios one after the other; `campaign.run` keeps their results.

    Those of the work that need something of a machine are `bound`, too.
    """
    quick = [scenario for scenario, settings in bound if settings.is_quick]
    needs = {need for scenario in quick for need in campaign.needs_of(scenario)}
    with closing(campaign.Stage(definition, needs)) as stage:
        for scenario, settings in work:
            campaign.run(scenario, definition, settings, tell, stage)


def run_all(definition: Definition, work: Work, count: int, tell: Tell) -> list[dict[str, Any]]:
    """Run scenarios in `count` jobs; return the results of those that came to an end."""
    for _, settings in work:
        (settings.folder / campaign.RESULT).unlink(missing_ok=True)
    parts, free = split(work, count)
    if len(parts) < 2:
        run(definition, [*parts[0], *free] if parts else work, tell, parts[0] if parts else [])
    else:
        _run_apart(definition, parts, free, tell)
    paths = (settings.folder / campaign.RESULT for _, settings in work)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def _run_apart(definition: Definition, parts: Sequence[Work], free: Work, tell: Tell) -> None:
    context = multiprocessing.get_context("spawn")
    taken = context.Value("i", 0)
    processes = [
        context.Process(target=_job, args=(definition, part, free, taken, tell)) for part in parts
    ]
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


def _job(
    definition: Definition, part: Work, free: Work, taken: "Synchronized[int]", tell: Tell
) -> None:
    signal.signal(signal.SIGTERM, lambda number, _: _end(128 + number))
    run(definition, _work(part, free, taken), tell, part)


def _work(part: Work, free: Work, taken: "Synchronized[int]") -> Iterator[One]:
    """Yield this job's scenarios, then those that no job has taken yet."""
    yield from part
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(free):
            return
        yield free[number]


def _end(code: int) -> None:
    # As an exception, so that the parts of a target are stopped before we are.
    raise SystemExit(code)
