"""Holds pure tests to what they are: one that starts a program fails, and says which."""

import asyncio
import sys
from collections.abc import Callable, Generator
from typing import Any, Final

import pytest

from tests.gate.classes import starts_nothing

_STARTS: Final = frozenset(
    {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "os.exec"}
)


class PureTestsStartNothing:
    """Looks at what Python itself reports of this process (`sys.addaudithook`)."""

    def __init__(self) -> None:
        self._pure_test: str | None = None
        self._started: list[str] = []
        sys.addaudithook(self._note)
        asyncio.create_subprocess_exec = _audited(asyncio.create_subprocess_exec)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._pure_test = item.nodeid if starts_nothing(item.path) else None
        self._started.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        result = yield
        self._pure_test = None
        if self._started:
            pytest.fail(
                f"{item.nodeid} starts {self._started[0]}: a test that starts a program says so, "
                "by `pytestmark = pytest.mark.programs` in its file",
                pytrace=False,
            )
        return result

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        # Called for each event of the interpreter, thousands in a second.
        if event in _STARTS and self._pure_test is not None:
            self._started.append(f"{arguments[1] if len(arguments) > 1 else event}")


def _audited(start: Callable[..., Any]) -> Callable[..., Any]:
    """Have asyncio tell what it starts: uvloop starts processes past what Python audits."""

    def audited(program: str, *arguments: Any, **more: Any) -> Any:
        sys.audit("subprocess.Popen", program, arguments)
        return start(program, *arguments, **more)

    return audited
