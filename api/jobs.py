"""Jobs: work that takes longer than a request, with progress, an end and a result.

In memory of this process: after a restart they are gone, as is what they had not done by then.
"""

import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from api.spark import Cancelled
from mqlake.clock import Clock
from mqlake.errors import MqlakeError

_logger = logging.getLogger(__name__)

WORKERS: Final = 2
"""Jobs that run at once; each keeps a processor busy."""
MAX_WAITING: Final = 20
MAX_KEPT: Final = 100
KEPT_SECONDS: Final = 3_600.0
"""Results are kept so long."""

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class TooManyJobs(MqlakeError):  # noqa: N818 - it names what is in the way
    """So many jobs wait already that this one is refused."""


@dataclass(slots=True)
class Job:
    """One piece of work; its own thread changes it, others read."""

    id: str
    kind: str
    tenant: str
    rule_id: str
    created_at_ms: int
    state: JobState = "queued"
    progress: float = 0.0
    """From 0 to 1."""
    note: str = ""
    """What it does now."""
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    finished_at: float | None = None
    """By the monotonic clock."""
    result: dict[str, Any] | None = None
    error: str | None = None
    cancelling: threading.Event = field(default_factory=threading.Event)

    def advance(self, progress: float, note: str) -> None:
        self.progress = max(self.progress, min(1.0, progress))
        self.note = note

    def check(self) -> None:
        """Stop when it is no longer wanted.

        Raises:
            Cancelled: Somebody has asked for it.
        """
        if self.cancelling.is_set():
            raise Cancelled("cancelled")


Work = Callable[[Job], dict[str, Any]]
"""Does the work and returns its result; what it raises is the job's error."""


class Jobs:
    """Runs jobs, a few at a time; safe to use from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="job")

    def start(self, kind: str, tenant: str, rule_id: str, work: Work) -> Job:
        """Queue a job.

        Raises:
            TooManyJobs: Too many wait.
        """
        with self._lock:
            self._drop_old()
            if sum(job.state == "queued" for job in self._jobs.values()) >= MAX_WAITING:
                raise TooManyJobs(f"{MAX_WAITING} jobs wait already: try again later")
            job = Job(secrets.token_hex(6), kind, tenant, rule_id, self._clock.now_ms())
            self._jobs[job.id] = job
        self._pool.submit(self._run, job, work)
        return job

    def get(self, job_id: str) -> Job | None:
        with self._lock:
            return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """Return the jobs that are remembered, the newest first."""
        with self._lock:
            self._drop_old()
            return list(reversed(self._jobs.values()))

    def cancel(self, job_id: str) -> Job | None:
        """Ask a job to end; one that has ended is forgotten."""
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None:
                return None
            if job.finished_at is not None:
                del self._jobs[job_id]
            job.cancelling.set()
            if job.state == "queued":
                self._finish(job, "cancelled")
            return job

    def close(self) -> None:
        """Ask all to end; do not wait for them."""
        with self._lock:
            for job in self._jobs.values():
                job.cancelling.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: Job, work: Work) -> None:
        with self._lock:
            if job.state != "queued":
                return
            job.state = "running"
            job.started_at_ms = self._clock.now_ms()
        state: JobState = "succeeded"
        try:
            job.result = work(job)
            job.progress = 1.0
        except Cancelled:
            state = "cancelled"
        except MqlakeError as exc:
            state, job.error = "failed", str(exc)
        except Exception:
            _logger.exception("job failed", extra={"fields": {"job": job.id, "kind": job.kind}})
            state, job.error = "failed", "an unexpected error; the API's log has the details"
        with self._lock:
            self._finish(job, state)

    def _finish(self, job: Job, state: JobState) -> None:
        job.state = state
        job.note = ""
        job.finished_at_ms = self._clock.now_ms()
        job.finished_at = self._clock.monotonic()

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        ended = [job for job in self._jobs.values() if job.finished_at is not None]
        surplus = len(self._jobs) - MAX_KEPT
        for number, job in enumerate(ended):
            assert job.finished_at is not None
            if number < surplus or now - job.finished_at > KEPT_SECONDS:
                del self._jobs[job.id]


def to_time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, tz=UTC)
