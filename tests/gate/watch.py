"""Looks at all programs that a run of tests starts: processor seconds by worker, starts by kind.

Parts of a system outlive the command that starts them, so a worker's descendants are not all of
them: what they inherit tells, the name of their worker in the environment.
"""

import re
import statistics
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from tests.gate.plan import BUSY_PACE
from tests.pace import processor_pace

_RUN: Final = "PYTEST_XDIST_TESTRUNUID"
_WORKER: Final = "PYTEST_XDIST_WORKER"
_KINDS: Final = {
    "broker": re.compile(r"\bkafka\.Kafka\b"),
    "Spark": re.compile(r"\bPythonGatewayServer\b"),
    "system": re.compile(r"-m cli api\b"),
    "other Java": re.compile(r"/java\b"),
    "Chromium": re.compile(r"chrom\S* --(?!type)"),
    "HAProxy": re.compile(r"\bhaproxy\b"),
    "Mosquitto": re.compile(r"\bmosquitto\b"),
}
_INIT: Final = 1
"""The parent of what has outlived its own; it tells nobody what that used."""
_LOOK_SECONDS: Final = 2.0
_FRESH_SECONDS: Final = 0.5


@dataclass(slots=True)
class _Seen:
    """A process: whose it is, its parent, and what it and all it has waited for have used."""

    worker: str
    parent: int
    seconds: float = 0.0
    kind: str = ""


class Watch:
    """Counts from its start to its end what lives longer than the time between two looks.

    Attributes:
        run: Which one it is to xdist; a test may run tests.
        starts: Programs by kind.
    """

    def __init__(self) -> None:
        self.run = ""
        self.starts: Counter[str] = Counter()
        self._alive: dict[tuple[int, float], _Seen | None] = {}
        self._ended: defaultdict[str, float] = defaultdict(float)
        self._paces: list[float] = []
        self._looked = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch of programs")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._over.set()
        self._thread.join()

    def add_worker(self, worker: str, pid: int) -> None:
        """Count a worker's own process, which has its name from after its start."""
        process = psutil.Process(pid)
        with self._lock:
            self._alive[pid, process.create_time()] = _Seen(worker, process.ppid())

    def end(self, worker: str) -> None:
        """End what a worker that is gone has left: who comes in its place starts its own."""
        with self._lock:
            self._look()
            for (pid, created), one in self._alive.items():
                if one is not None and one.worker == worker:
                    with suppress(psutil.Error):
                        process = psutil.Process(pid)
                        if process.create_time() == created:
                            process.kill()

    def seconds_used(self, worker: str) -> float:
        """Return what a worker and its programs have used until now, or half a second ago."""
        with self._lock:
            if time.monotonic() - self._looked > _FRESH_SECONDS:
                self._look()
            return self._ended[worker] + sum(
                one.seconds
                for one in self._alive.values()
                if one is not None and one.worker == worker
            )

    def pace(self) -> float:
        """Return how much slower than on a quiet machine the processor was, at the median."""
        return max(statistics.median(self._paces) / BUSY_PACE, 1.0) if self._paces else 1.0

    def _run(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._paces.append(processor_pace())
            with self._lock:
                self._look()

    def _look(self) -> None:
        self._looked = time.monotonic()
        seen: dict[tuple[int, float], _Seen | None] = {}
        for process in psutil.process_iter():
            try:
                key = process.pid, process.create_time()
                one = self._alive[key] if key in self._alive else self._first_look(process)
                seen[key] = one
                if one is not None:
                    self._update(one, process)
            except (psutil.Error, OSError):  # it has ended meanwhile, or is another user's
                continue
        alive = {pid for pid, _ in seen}
        gone = {
            pid: one
            for (pid, created), one in self._alive.items()
            if one is not None and (pid, created) not in seen
        }
        for one in gone.values():
            # What an ancestor has waited for, or one that this has waited for, is in its sum.
            ancestor = one.parent
            for _ in gone:  # at most, should numbers of processes have come again
                if ancestor in gone:
                    ancestor = gone[ancestor].parent
            if ancestor == _INIT or ancestor not in alive:
                self._ended[one.worker] += one.seconds
        self._alive = seen

    def _first_look(self, process: psutil.Process) -> _Seen | None:
        environment = process.environ()
        if environment.get(_RUN) != self.run:
            return None
        return _Seen(environment.get(_WORKER, ""), process.ppid())

    def _update(self, one: _Seen, process: psutil.Process) -> None:
        with process.oneshot():
            one.parent = process.ppid()
            # User and system, then the same of children that it has waited for.
            one.seconds = sum(process.cpu_times()[:4])
        if not one.kind:
            # A process that has just been forked still has its parent's command.
            command = " ".join(process.cmdline())
            one.kind = next((kind for kind, form in _KINDS.items() if form.search(command)), "")
            if one.kind:
                self.starts[one.kind] += 1
