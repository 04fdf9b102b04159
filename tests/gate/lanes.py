"""Which worker runs what, and in which order.

Three lanes begin together, one for each worker: all that uses the system that tests share, and the
Spark of the rules' language; other sessions of Spark; brokers, which wait more than they compute.
Who is the first to end takes the fourth, the engine that tests share. Files in which all tests run
a system of their own go to the end of the lanes that have systems, as their costs are: two systems
bear each other on two processors, three do not. What has no lane is for whichever worker is free,
file by file, the dearest first.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.gate.classes import (
    ROOT,
    Class,
    Lane,
    class_of,
    files_of_tests,
    is_first,
    lane_of,
    shares_the_system,
)
from tests.gate.full_run import FullRun, file_of

_ENGINES_BEGIN: Final = 300
"""Processor seconds that the other lane with systems has used by then, as last measured."""
_LATE: Final = ("kafka", "spark", "system")


class Lanes:
    """The lanes of one stage, the same in each worker.

    Args:
        left_out: Tests of the campaign that do not run, by name.
    """

    def __init__(self, left_out: Collection[str]) -> None:
        self._costs = Counter[Path]()
        for name, cost in FullRun.read().costs.items():
            if name not in left_out:
                self._costs[ROOT / file_of(name)] += round(cost)
        self._own_systems = self._share_out()

    def of(self, file: Path) -> Lane | None:
        """Return the lane of a file."""
        return lane_of(file) or self._own_systems.get(file)

    def turn(self, item: pytest.Item) -> tuple[int, bool, bool, int]:
        """Return a test's place among all of the stage."""
        file = item.path
        lane = self.of(file)
        order = list(Lane).index(lane) if lane is not None else len(Lane)
        is_own = file in self._own_systems
        # In a lane the order of folders stays; each has something that its tests share.
        cost = self._costs[file] if lane is None or is_own else 0
        return order, not is_first(file), is_own, -cost

    def _share_out(self) -> dict[Path, Lane]:
        """Give systems of their own to lanes: the dearest first, where least has to run."""
        sums = {Lane.SYSTEMS: 0, Lane.ENGINES: _ENGINES_BEGIN}
        own = []
        for file in files_of_tests():
            lane = lane_of(file)
            if lane in sums:
                sums[lane] += self._costs[file]
            elif class_of(file) is Class.SYSTEM:
                own.append(file)
        given = {}
        for file in sorted(own, key=lambda file: -self._costs[file]):
            given[file] = min(sums, key=lambda lane: sums[lane])
            sums[given[file]] += self._costs[file]
        return given


class LaneScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a lane to a worker as a whole, and files without one each by itself.

    xdist's own groups change the name of a test, which pytest 9 does not let them.
    """

    def __init__(self, config: pytest.Config, log: Any, lanes: Lanes) -> None:
        super().__init__(config, log)
        self._lanes = lanes

    def remove_node(self, node: Any) -> str | None:
        """Hand on what a worker that is gone had still to run, and return the test it ended in.

        xdist hands on all that it ever had: the worker in its place would end in that test again,
        or be given what has nothing to run and wait for ever.
        """
        units = self.assigned_work.pop(node)
        if self.collection is None:
            self.registered_collections.pop(node, None)  # its replacement's is waited for
        left = {
            scope: dict.fromkeys((test for test, is_done in unit.items() if not is_done), False)
            for scope, unit in units.items()
        }
        tests: list[str] = [test for unit in left.values() for test in unit]
        if not tests:
            return None
        del left[self._split_scope(tests[0])][tests[0]]
        for scope in reversed([scope for scope, unit in left.items() if unit]):
            self.workqueue[scope] = left[scope]
            self.workqueue.move_to_end(scope, last=False)
        for other in self.nodes:
            self._reschedule(other)
        return tests[0]

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Take what a worker has collected: one in another's place may have it in another order.

        xdist gives such a one nothing to run, and the stage waits for ever. One that has not
        collected all that the others have ends the run.
        """
        if self.collection is not None:
            lacking = sorted(set(self.collection).difference(collection))
            if lacking:
                message = (
                    f"{node.gateway.id}, which came in the place of a worker that crashed, has not "
                    f"collected {len(lacking)} tests, such as {lacking[0]}"
                )
                pytest.exit(message)
            self.registered_collections[node] = list(collection)
        else:
            super().add_node_collection(node, collection)

    def _reschedule(self, node: Any) -> None:
        """Give a worker two tests or more: it runs one when it knows the next one, or the end.

        xdist gives one that comes in the place of another a single file, which may be one test.
        """
        # It has first to say what it has collected.
        is_ready = node in self.registered_collections
        while is_ready:
            super()._reschedule(node)
            has_enough = self._pending_of(self.assigned_work[node]) > 1
            is_ready = not has_enough and not node.shutting_down

    def _split_scope(self, nodeid: str) -> str:
        name = file_of(nodeid)
        return self._lanes.of(self.config.rootpath / name) or name


def check_shared_systems(items: Collection[pytest.Item]) -> None:
    """Refuse a test whose file does not show that it uses the shared system.

    Raises:
        pytest.UsageError: The worker that has the system would not be the one to run it.
    """
    for item in items:
        if _uses_the_shared_system(item) and not shares_the_system(item.path):
            message = (
                f"{item.nodeid} uses the shared system, which the text of its file does not show"
            )
            raise pytest.UsageError(message)


def lateness(item: pytest.Item) -> tuple[int, bool, bool]:
    """Return a test's place in its file and folder: first what starts nothing, systems last."""
    if not _is_integration(item):
        return 0, False, False
    needs = {marker.name for marker in item.iter_markers()}
    late = 1 + max((_LATE.index(need) for need in needs.intersection(_LATE)), default=0)
    # Once the engine has a lake, it is there to its end, and starts anew with each that is killed.
    return late, not _uses_the_shared_system(item), "lake" in getattr(item, "fixturenames", ())


def _uses_the_shared_system(item: pytest.Item) -> bool:
    return _is_integration(item) and "system" in getattr(item, "fixturenames", ())


def _is_integration(item: pytest.Item) -> bool:
    return "tests/integration" in item.path.as_posix()
