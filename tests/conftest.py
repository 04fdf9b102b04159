"""What all tests have in common; the stages of the gate are in tests/gate."""

import gc
import os
from collections.abc import Generator
from pathlib import Path, PurePath
from typing import Any, Final

import hypothesis
import pytest

from tests.gate.guard import PureTestsStartNothing
from tests.gate.lanes import Lanes, LaneScheduling, check_shared_systems, lateness
from tests.gate.limit import Limit
from tests.gate.order import mix_files
from tests.gate.plan import Plan
from tests.gate.reads import Reads
from tests.gate.report import Report, reason_of
from tests.gate.watchdog import Watchdog

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile(
    "mqlake", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("mqlake")

_TIMEOUT: Final = "Timeout "
"""Begins what pytest-timeout says."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write tests/transcripts again, or the imports in ARCHITECTURE.md and docs/design",
    )
    parser.addoption("--plan", type=Path, help="what this run is of a gate (tests/gate/plan.py)")
    parser.addoption("--order", type=int, metavar="SEED", help="mix files, by this seed")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--order")
    return None if seed is None else f"order of files: --order={seed}"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(PureTestsStartNothing())
    config.pluginmanager.register(Watchdog(config))
    config.pluginmanager.register(_SharedInFolders())
    plan = _plan(config)
    handed_over: dict[str, Any] | None = getattr(config, "workerinput", None)
    if handed_over is None:
        config.pluginmanager.register(_FailuresAtOnce(config))
        if plan is not None:
            config.pluginmanager.register(Report(config, plan))
            config.pluginmanager.register(Limit(plan))
    elif plan is not None:
        plan.pid_file(handed_over["workerid"]).write_text(str(os.getpid()))
        if plan.notes_reads:
            config.pluginmanager.register(Reads(plan.reads_file(handed_over["workerid"])))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lateness)
    check_shared_systems(items)
    if (plan := _plan(config)) is not None:
        left_out = {item for item in items if plan.leaves_out(item)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
        items.sort(key=Lanes(plan.left_out).turn)
    if (seed := config.getoption("--order")) is not None:
        mix_files(items, seed)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LaneScheduling | None:
    plan = _plan(config)
    return None if plan is None else LaneScheduling(config, log, Lanes(plan.left_out))


def pytest_collection_finish() -> None:
    # What thousands of tests and all modules are of stays, and takes 0.3 s to go through each time.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.get_closest_marker("promise") and call.excinfo is not None:
        broken = call.excinfo.errisinstance((AssertionError, pytest.fail.Exception))
        is_timeout = str(call.excinfo.value).startswith(_TIMEOUT)
        report.user_properties.append(("broken promise", broken and not is_timeout))
    return report


def _plan(config: pytest.Config) -> Plan | None:
    file: Path | None = config.getoption("--plan")
    return None if file is None else Plan.read(file)


class _FailuresAtOnce:
    """Says in a line what failed when it fails: a run that is cut short has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            reason = reason_of(report)[:500]
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}): {reason}")


class _SharedInFolders:
    """Ends what the tests of a folder share when the next one is of another.

    Else its brokers and its Spark would take processors beside all that comes. A test that comes
    back to the folder has them start anew.
    """

    def __init__(self) -> None:
        self._running: list[tuple[pytest.FixtureDef[Any], Any]] = []

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: Any) -> None:
        if fixturedef.scope == "session":
            self._running.append((fixturedef, request))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if nextitem is None:
            return  # the session ends, and they with it
        left = set(_folders(item)) - set(_folders(nextitem))
        for one in [one for one in self._running if one[0].baseid in left]:
            self._running.remove(one)
            one[0].finish(one[1])


def _folders(item: pytest.Item) -> list[str]:
    folder = PurePath(item.nodeid.partition("::")[0]).parent
    return [one.as_posix() for one in (folder, *folder.parents)]
