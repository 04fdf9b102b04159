"""Jobs: work that takes longer than a request, with progress, an end and a result.

The state of a job goes into a journal, so that it outlives this process: the next process that
reads the journal lists the job, and can go on with it from the place that it had noted.
"""

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from api.spark.connect import Cancelled
from mqlake.clock import Clock
from mqlake.errors import MqlakeError

_logger = logging.getLogger(__name__)

WORKERS: Final = 2
"""Jobs that run at once; each keeps a processor busy."""
WAITING_KINDS: Final = frozenset({"replay"})
"""Jobs that mostly wait, for hours even: they have workers of their own."""
WAITING_WORKERS: Final = 4
MAX_WAITING: Final = 20
"""Jobs waiting from which on a tenant may add one only if it has less than its part of them."""
MOST_WAITING: Final = 100
"""Jobs of all tenants that may wait; beyond it none may add one."""
MAX_KEPT: Final = 100
KEPT_SECONDS: Final = 86_400.0
"""Results are kept so long."""
BEAT_SECONDS: Final = 2.0
"""How often a job that runs is noted."""
SILENT_MS: Final = 10_000
"""A job of another process that was not noted for so long is interrupted: the process is gone."""

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled", "interrupted"]
UNFINISHED: Final = ("queued", "running")
_RESUMABLE: Final = ("interrupted", "failed", "cancelled")


class TooManyJobs(MqlakeError):  # noqa: N818 - it names the obstacle
    """Too many jobs wait already."""


class NotResumable(MqlakeError):  # noqa: N818 - as above
    """The job runs, or is done, or cannot be gone on with."""


class JobElsewhere(MqlakeError):  # noqa: N818 - as above
    """Another process does this job."""


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
    """Its present step."""
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    finished_at: float | None = None
    """By the monotonic clock."""
    result: dict[str, Any] | None = None
    error: str | None = None
    request: dict[str, Any] | None = None
    """The request, as JSON; None for a job that cannot be resumed."""
    place: dict[str, Any] = field(default_factory=dict)
    """Place in its work, as JSON, to resume from; replaced as a whole."""
    owner: str = ""
    """Process, and its run, that does the job."""
    noted_at_ms: int = 0
    """Time of its last note in the journal."""
    cancelling: threading.Event = field(default_factory=threading.Event)

    def advance(self, progress: float, note: str) -> None:
        self.progress = max(self.progress, min(1.0, progress))
        self.note = note

    def check(self) -> None:
        """Stop when it is no longer wanted.

        Raises:
            Cancelled: It was asked for.
        """
        if self.cancelling.is_set():
            raise Cancelled("cancelled")


Work = Callable[[Job], dict[str, Any]]
"""Does the work and returns its result; an exception is the job's error."""


class Journal(Protocol):
    """Keeps the states of jobs."""

    def write(self, job: Job) -> None:
        """Keep a job as it is.

        Raises:
            MqlakeError: It was not kept.
        """
        ...

    def erase(self, job: Job) -> None:
        """Note that a job is forgotten."""
        ...


class NoJournal:
    """Jobs that end with the process."""

    def write(self, job: Job) -> None:
        pass

    def erase(self, job: Job) -> None:
        pass


class Jobs:
    """Runs jobs, a few at a time; safe to use from any thread."""

    def __init__(self, clock: Clock, journal: Journal | None = None) -> None:
        self._clock = clock
        self._journal = journal or NoJournal()
        self._owner = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._works: dict[str, Work] = {}  # of those that are queued here
        self._changed: dict[str, Job] = {}
        self._gone: list[Job] = []
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="job")
        self._waiting_pool = ThreadPoolExecutor(WAITING_WORKERS, thread_name_prefix="waiting-job")
        self._wake = threading.Event()
        self._is_closed = False
        self._writer: threading.Thread | None = None

    def start(
        self,
        kind: str,
        tenant: str,
        rule_id: str,
        work: Work,
        request: dict[str, Any] | None = None,
    ) -> Job:
        """Queue a job.

        Args:
            kind: Kind of the job.
            tenant: Owner of the job.
            rule_id: Rule that it is about.
            work: Does it.
            request: From which `work` can be made again, as JSON; None: it cannot be resumed.

        Raises:
            TooManyJobs: Too many wait.
            MqlakeError: It could not be noted.
        """
        job_id = secrets.token_hex(6)
        job = Job(job_id, kind, tenant, rule_id, self._clock.now_ms(), request=request)
        return self._start(job, work)

    def resume(self, job_id: str, work: Work) -> Job:
        """Queue a job again that was interrupted, has failed or was cancelled.

        Raises:
            NotResumable: It is none of these.
            TooManyJobs: Too many wait.
            MqlakeError: It could not be noted.
        """
        old = self.get(job_id)
        if old is None or old.state not in _RESUMABLE or old.request is None:
            state = "not known" if old is None else old.state
            raise NotResumable(f"job {job_id!r} is {state}: it cannot be resumed")
        job = Job(
            old.id,
            old.kind,
            old.tenant,
            old.rule_id,
            old.created_at_ms,
            progress=old.progress,
            request=old.request,
            place=old.place,
        )
        return self._start(job, work)

    def get(self, job_id: str) -> Job | None:
        with self._lock:
            self._look_for_silence()
            return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """Return the jobs that are remembered, the newest first."""
        with self._lock:
            self._drop_old()
            self._look_for_silence()
            newest_last = sorted(self._jobs.values(), key=lambda job: job.created_at_ms)
            return newest_last[::-1]

    def is_under_way(self, kind: str, tenant: str, rule_id: str) -> bool:
        """Tell whether there is a job of this kind about a rule that has not ended."""
        return any(
            (job.kind, job.tenant, job.rule_id) == (kind, tenant, rule_id)
            and job.finished_at is None
            for job in self.all()
        )

    def cancel(self, job_id: str) -> Job | None:
        """Ask a job to end; one that has ended is forgotten.

        Raises:
            JobElsewhere: Another process is at it.
        """
        with self._lock:
            self._look_for_silence()
            job = self._jobs.get(job_id)
            if job is None:
                return None
            if job.finished_at is not None:
                self._drop(job)
            elif job.owner != self._owner:
                raise JobElsewhere(f"job {job_id!r} runs in another process of the API")
            job.cancelling.set()
            if job.state == "queued":
                self._finish(job, "cancelled")
            return job

    def close(self) -> None:
        """Interrupt all; do not wait for them."""
        with self._lock:
            self._is_closed = True
            interrupted = [
                job
                for job in self._jobs.values()
                if job.owner == self._owner and job.finished_at is None
            ]
            for job in interrupted:
                job.cancelling.set()
                self._finish(job, "interrupted")
        for pool in (self._pool, self._waiting_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self._wake.set()
        if self._writer is not None:
            self._writer.join()
        self._write_changes()

    # Taking jobs from the journal

    def take(self, job: Job) -> None:
        """Take a job of another process, or of an earlier run of this one."""
        with self._lock:
            known = self._jobs.get(job.id)
            if job.owner == self._owner:
                return
            # When the log is read again, notes of others before we took the job over come again.
            if (
                known is not None
                and known.owner == self._owner
                and (known.finished_at is None or job.noted_at_ms <= known.noted_at_ms)
            ):
                return
            if job.finished_at_ms is not None:
                age = (self._clock.now_ms() - job.finished_at_ms) / 1000
                job.finished_at = self._clock.monotonic() - max(0.0, age)
            self._jobs[job.id] = job

    def forget(self, job_id: str) -> None:
        """Take note that a job was forgotten."""
        with self._lock:
            job = self._jobs.get(job_id)
            if job is not None and (job.owner != self._owner or job.finished_at is not None):
                del self._jobs[job_id]

    def drop_ended(self, tenant: str) -> None:
        """Forget a tenant's jobs that have ended, and their results."""
        with self._lock:
            for job in list(self._jobs.values()):
                if job.tenant == tenant and job.finished_at is not None:
                    self._drop(job)

    # Running jobs

    def _start(self, job: Job, work: Work) -> Job:
        job.owner = self._owner
        with self._lock:
            self._drop_old()
            self._check_room(job.tenant)
            before = self._jobs.pop(job.id, None)
            self._jobs[job.id] = job
        try:
            self._note(job)
        except MqlakeError:
            with self._lock:
                del self._jobs[job.id]
                if before is not None:
                    self._jobs[job.id] = before
            raise
        self._keep_writing()
        with self._lock:
            self._works[job.id] = work
        waits = job.kind in WAITING_KINDS
        pool = self._waiting_pool if waits else self._pool
        pool.submit(self._run_next, waits=waits)
        return job

    def _queued(self) -> list[Job]:
        return [
            one for one in self._jobs.values() if one.state == "queued" and one.owner == self._owner
        ]

    def _check_room(self, tenant: str) -> None:
        """Refuse a job when too many wait, and its tenant has its part of them.

        Raises:
            TooManyJobs: So it is.
        """
        waiting = Counter(one.tenant for one in self._queued())
        part = max(MAX_WAITING // len({*waiting, tenant}), 1)
        is_full = waiting.total() >= MAX_WAITING and waiting[tenant] + 1 > part
        if is_full or waiting.total() >= MOST_WAITING:
            raise TooManyJobs(f"{waiting.total()} jobs wait already: try again later")

    def _run_next(self, *, waits: bool) -> None:
        """Do the oldest job of the tenant of whom fewest run."""
        with self._lock:
            running = Counter(one.tenant for one in self._jobs.values() if one.state == "running")
            found = [
                one
                for one in self._queued()
                if one.id in self._works and (one.kind in WAITING_KINDS) == waits
            ]
            if not found:  # all have been cancelled
                return
            job = min(found, key=lambda one: running[one.tenant])
            work = self._works.pop(job.id)
            job.state = "running"
            job.started_at_ms = self._clock.now_ms()
            self._change(job)
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
            if not self._is_closed:
                self._finish(job, state)

    def _finish(self, job: Job, state: JobState) -> None:
        self._works.pop(job.id, None)
        job.state = state
        job.note = ""
        job.finished_at_ms = self._clock.now_ms()
        job.finished_at = self._clock.monotonic()
        self._change(job)

    def _look_for_silence(self) -> None:
        """Find the jobs whose process is gone."""
        now_ms = self._clock.now_ms()
        for job in self._jobs.values():
            if (
                job.owner != self._owner
                and job.state in UNFINISHED
                and now_ms - job.noted_at_ms > SILENT_MS
            ):
                job.state, job.note = "interrupted", ""
                job.finished_at_ms = job.noted_at_ms
                job.finished_at = self._clock.monotonic()

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        ended = [job for job in self._jobs.values() if job.finished_at is not None]
        surplus = len(self._jobs) - MAX_KEPT
        for number, job in enumerate(ended):
            assert job.finished_at is not None
            if number < surplus or now - job.finished_at > KEPT_SECONDS:
                self._drop(job)

    def _drop(self, job: Job) -> None:
        del self._jobs[job.id]
        self._changed.pop(job.id, None)
        self._gone.append(job)
        self._wake.set()

    # Writing the journal

    def _change(self, job: Job) -> None:
        self._changed[job.id] = job
        self._wake.set()

    def _note(self, job: Job) -> None:
        job.noted_at_ms = self._clock.now_ms()
        self._journal.write(job)

    def _keep_writing(self) -> None:
        with self._lock:
            if self._writer is None and not self._is_closed:
                self._writer = threading.Thread(target=self._write, name="jobs", daemon=True)
                self._writer.start()

    def _write(self) -> None:
        problem = ""
        while not self._is_closed:
            self._wake.wait(BEAT_SECONDS)
            self._wake.clear()
            with self._lock:
                for job in self._jobs.values():
                    if job.owner == self._owner and job.state in UNFINISHED:
                        self._changed[job.id] = job
            said = self._write_changes()
            if said and said != problem:
                _logger.warning("jobs are not noted", extra={"fields": {"reason": said}})
            problem = said
            if said:
                self._wake.clear()

    def _write_changes(self) -> str:
        """Write the changed jobs; return the error, if there was one."""
        with self._lock:
            changed, self._changed = self._changed, {}
            gone, self._gone = self._gone, []
        problem = ""
        for job in changed.values():
            try:
                self._note(job)
            except MqlakeError as exc:
                problem = str(exc)
                with self._lock:
                    self._changed.setdefault(job.id, job)
        for job in gone:
            try:
                self._journal.erase(job)
            except MqlakeError as exc:
                problem = str(exc)
                with self._lock:
                    self._gone.append(job)
        return problem


def to_time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, tz=UTC)
