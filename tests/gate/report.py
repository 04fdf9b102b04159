"""Takes down what a stage of the gate comes to, and says it before pytest's own summary.

Runs in the process that hands tests to workers. The summary of a stage includes the stages before
it, so that the last one is the summary of all.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from tests.gate.classes import Class, class_of
from tests.gate.full_run import cost_name, file_of, is_of_the_campaign
from tests.gate.lanes import Lanes
from tests.gate.outcome import Failure, Outcome
from tests.gate.plan import BUDGET, Plan
from tests.gate.static import Checks
from tests.gate.watch import Watch
from tests.pace import load

MOST_OVER: Final = 1.1
"""Times the budget that a gate may cost: above it there is a warning, above this it fails."""
_LONGEST: Final = 10
_REASON_CHARACTERS: Final = 300


class Report:
    """One stage, as its plan says."""

    def __init__(self, config: pytest.Config, plan: Plan) -> None:
        self._config = config
        self._plan = plan
        self._lanes = Lanes(plan.left_out)
        self._began = time.time()
        self._static = Checks({}, 0.0)
        self._ended: dict[str, float] = {}
        """Seconds of this stage after which a lane, or all that has none, had run."""
        self._watch = Watch()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._costs: defaultdict[str, float] = defaultdict(float)
        self._used: defaultdict[str, float] = defaultdict(float)
        self._failures: list[Failure] = []
        self._outcomes: list[Outcome] = []
        """Of the stages before, and of this one when its tests have run."""
        self._is_interrupted = False

    def pytest_sessionstart(self) -> None:
        self._watch.start()

    def pytest_configure_node(self, node: Any) -> None:
        self._watch.run = node.workerinput["testrunuid"]

    def pytest_testnodeready(self, node: Any) -> None:
        worker = node.gateway.id
        self._watch.add_worker(worker, int(self._plan.pid_file(worker).read_text()))

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._plan.pid_file(node.gateway.id).unlink(missing_ok=True)
        if error is not None:
            self._watch.end(node.gateway.id)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failures.append(self._failure(report))
        if report.when == "teardown":
            self._note_cost(report)
            lane = self._lanes.of(self._config.rootpath / file_of(report.nodeid))
            self._ended[lane or "no lane"] = time.time() - self._began

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let the gate fail whose static checks do, or that has become too dear.

        pytest asks for its summary after this.
        """
        terminalreporter = self._config.pluginmanager.get_plugin("terminalreporter")
        self._outcomes = [
            *(Outcome.read(Path(file)) for file in self._plan.earlier),
            self._outcome(terminalreporter),
        ]
        self._is_interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
        if self._plan.static and not self._is_interrupted:
            self._static = Checks.awaited(Path(self._plan.static))
        is_red = bool(self._static.failures) or self._is_too_dear()
        if is_red and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        *earlier, outcome = self._outcomes
        outcome.write(Path(self._plan.outcome))
        for one in earlier:
            self._include(one, terminalreporter)
        for command, said in self._static.failures.items():
            terminalreporter.section(command)
            terminalreporter.write_line(said)
        terminalreporter.section("gate")
        for line in self._lines():
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        self._watch.stop()
        if self._is_interrupted:
            for worker in self._used:
                self._watch.end(worker)

    def _failure(self, report: pytest.TestReport) -> Failure:
        reason = reason_of(report)[:_REASON_CHARACTERS]
        return Failure(report.nodeid, reason, self._may_be_noise(report), load())

    def _may_be_noise(self, report: pytest.TestReport) -> bool:
        """Tell whether the machine may have done it: to no computation, and to no promise."""
        if self._class_of(report.nodeid) is Class.PURE or "hypothesis" in report.keywords:
            return False
        return ("broken promise", True) not in map(tuple, report.user_properties)

    def _class_of(self, name: str) -> Class:
        return class_of(self._config.rootpath / file_of(name))

    def _note_cost(self, report: pytest.TestReport) -> None:
        worker = report.node.gateway.id
        used = self._watch.seconds_used(worker)
        name = cost_name(report.nodeid, "campaign" in report.keywords)
        self._costs[name] += max(used - self._used[worker], 0.0)
        self._used[worker] = max(used, self._used[worker])

    def _outcome(self, terminalreporter: Any) -> Outcome:
        stats = terminalreporter.stats
        longest = sorted(self._seconds.items(), key=lambda one: -one[1])
        return Outcome(
            counts={word: len(found) for word, found in stats.items() if word},
            skipped=[report.longrepr for report in stats.get("skipped", [])],
            failures=self._failures,
            costs=dict(self._costs),
            longest=longest[:_LONGEST],
            starts=dict(self._watch.starts),
            pace=self._watch.pace(),
        )

    def _include(self, earlier: Outcome, terminalreporter: Any) -> None:
        stats = terminalreporter.stats
        passed = [_earlier("passed")] * earlier.counts.get("passed", 0)
        stats.setdefault("passed", []).extend(passed)
        stats.setdefault("skipped", []).extend(
            _earlier("skipped", (path, line, reason)) for path, line, reason in earlier.skipped
        )

    def _costs_by_class(self) -> dict[str, float]:
        """Return processor seconds of a quiet machine, of all stages until now."""
        static = self._static.seconds / self._outcomes[0].pace
        costs = defaultdict(float, {"static": static})
        for outcome in self._outcomes:
            for name, cost in outcome.quiet_costs().items():
                kind = "campaign" if is_of_the_campaign(name) else self._class_of(name).value
                costs[kind] += cost
        return costs

    def _is_too_dear(self) -> bool:
        used = sum(self._costs_by_class().values())
        return used > MOST_OVER * BUDGET and not self._plan.is_full

    def _lines(self) -> Iterable[str]:
        """Say what the gate cost, what was left out, and what passed only when it ran alone."""
        plan, outcomes = self._plan, self._outcomes
        costs = self._costs_by_class()
        used = sum(costs.values())
        shares = ", ".join(f"{name} {cost:,.0f}" for name, cost in costs.items())
        yield (
            f"{time.time() - plan.began:,.0f} s; {used:,.0f} processor seconds of a quiet "
            f"machine ({shares}); this one took {outcomes[-1].pace:.2f} times as many"
        )
        starts = sum((Counter(one.starts) for one in outcomes), Counter[str]())
        yield "started: " + ", ".join(f"{count} {kind}" for kind, count in starts.most_common())
        ended = sorted(self._ended.items(), key=lambda one: one[1])
        yield "last tests ended after: " + ", ".join(
            f"{lane} {seconds:,.0f} s" for lane, seconds in ended
        )
        longest = sorted((one for outcome in outcomes for one in outcome.longest), key=_by_seconds)
        yield from (f"{seconds:7.1f} s {test}" for test, seconds in longest[:_LONGEST])
        if plan.left_out and plan.earlier:  # the first stage leaves out hardly anything
            files = Counter(file_of(name) for name in plan.left_out)
            count = len(plan.left_out)
            yield f"left out, in turn with other changes: {count} tests of the campaign"
            yield from (f"{count:5} of {file}" for file, count in sorted(files.items()))
        yield from (f"not run, as proven by its content: {one}" for one in plan.proven)
        if used > BUDGET and not plan.is_full:
            word = "FAILED" if self._is_too_dear() else "WARNING"
            yield f"{word}: that is above the budget of {BUDGET:,.0f} processor seconds"
        yield from (f"FAILED {command}" for command in self._static.failures)
        yield from (f"FLAKY {number}: {one}" for number, one in enumerate(plan.run_again, 1))


def reason_of(report: pytest.TestReport) -> str:
    """Return in a line why a test failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join((report.longreprtext if crash is None else crash.message).split())


def _earlier(
    outcome: Literal["passed", "skipped"], why: tuple[str, int, str] | None = None
) -> pytest.TestReport:
    """Stand in pytest's summary for a test of an earlier stage."""
    return pytest.TestReport("", ("", None, ""), {}, outcome, why, "call")


def _by_seconds(one: tuple[str, float]) -> float:
    return -one[1]
