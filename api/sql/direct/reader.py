"""Asks child processes small questions, and starts them when they are needed.

A process of its own: what takes too much memory there ends itself alone, and what takes too long is
ended. Then, and when a file cannot be read, the query is for Spark, which says what is wrong.
"""

import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from api.spark.connect import Cancelled
from api.sql.direct.questions import SmallQuestion

_WORKER: Final = "api.sql.direct.worker"
_LOOK_SECONDS: Final = 0.1
"""How often it looks whether the answer is wanted still."""
_MOST_ANSWER: Final = 64 * 1024

_logger = logging.getLogger(__name__)


class TableFiles:
    """Answers questions from the files of tables; safe to use from any thread.

    It has as many child processes as there were questions at once. A child that is asked nothing
    for some minutes ends.

    Args:
        folder: Folder of the tables.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._is_closed = False

    def answer(
        self, question: SmallQuestion, most: int, target: Path, is_unwanted: Callable[[], bool]
    ) -> int | None:
        """Write the answer into a file; return how many rows there are, None when it is for Spark.

        Args:
            question: What is asked.
            most: Rows that are written; there may be more.
            target: The file.
            is_unwanted: Asked again and again; the answer is then given up.

        Raises:
            Cancelled: It was given up.
        """
        if not (self._folder / question.table).is_dir():
            return None  # Spark says what is wrong
        types = [column.type for column in question.columns]
        asked = [question.table, question.first(most), types, most, str(target)]
        line = json.dumps(asked).encode() + b"\n"
        while (child := self._lend()) is not None:
            is_used = child.is_used
            try:
                said = child.ask(line, is_unwanted)
            except BaseException:
                self._give_back(child, is_over=True)
                raise
            self._give_back(child, is_over=said is None)
            if said is not None or not is_used:
                return self._rows(said)
            # It had ended while it had nothing to do, or has now: another one answers.
        return None

    def close(self) -> None:
        """End all children, in the middle of a question too."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for child in self._busy:
                child.kill()
        for child in idle:
            child.end()

    def _rows(self, said: dict[str, Any] | None) -> int | None:
        if said is None:
            _logger.info("a small question has ended its process: Spark is asked")
            return None
        if "error" in said:
            _logger.info("a small question is for Spark", extra={"fields": {"why": said["error"]}})
            return None
        rows: int = said["rows"]
        return rows

    def _lend(self) -> "_Child | None":
        with self._lock:
            if self._is_closed:
                return None
            child = self._idle.pop() if self._idle else _Child(self._folder)
            self._busy.add(child)
            return child

    def _give_back(self, child: "_Child", *, is_over: bool) -> None:
        with self._lock:
            self._busy.discard(child)
            if not is_over and not self._is_closed:
                self._idle.append(child)
                return
        child.end()


class _Child:
    """A process that answers, one question at a time."""

    def __init__(self, folder: Path) -> None:
        self.is_used = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _WORKER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # It finds the modules that we have found.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def ask(self, line: bytes, is_unwanted: Callable[[], bool]) -> dict[str, Any] | None:
        """Return what it says; None when it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.is_used = True
        try:
            self._process.stdin.write(line)
        except BrokenPipeError:
            return None
        got = b""
        while not got.endswith(b"\n"):
            if is_unwanted():
                raise Cancelled("cancelled")
            if select.select([self._process.stdout], [], [], _LOOK_SECONDS)[0]:
                part = os.read(self._process.stdout.fileno(), _MOST_ANSWER)
                if not part:
                    return None
                got += part
        said: dict[str, Any] = json.loads(got)
        return said

    def kill(self) -> None:
        """End it; who asks it sees that."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def end(self) -> None:
        """End it and wait for its end; it must have no more questions."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
