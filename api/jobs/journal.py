"""The journal of jobs: records of `mqlake.jobs`.

`docs/records.md` has them in prose. A job is one record, written again while it runs: a process
that reads them knows the jobs to list, and where a job that was interrupted goes on.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from api.jobs.jobs import Job, Jobs
from api.log.appending import LogAppender
from api.log.following import Followed, KeptInMemory
from mqlake.errors import InvalidRecord
from mqlake.records.messages import JOBS
from mqlake.records.versions import RECORD_VERSION, VERSION_HEADER, Headers, check_version

MAX_BYTES: Final = 900_000
"""Size of a record; the log takes a million."""

_HEADERS: Final[Headers] = [VERSION_HEADER]
_FIELDS: Final = {
    "kind": "kind",
    "tenant": "tenant",
    "rule": "rule_id",
    "state": "state",
    "progress": "progress",
    "note": "note",
    "created_at": "created_at_ms",
    "started_at": "started_at_ms",
    "finished_at": "finished_at_ms",
    "request": "request",
    "place": "place",
    "result": "result",
    "error": "error",
    "owner": "owner",
    "at": "noted_at_ms",
}
"""Member of a record -> attribute of `Job`."""


class LogJournal:
    """Keeps jobs in the log."""

    def __init__(self, log: LogAppender) -> None:
        self._log = log

    def write(self, job: Job) -> None:
        """Keep a job as it is.

        Raises:
            LogError: The log does not answer.
            OperationalError: Its address is unknown.
        """
        self._append(job, encode_job(job))

    def erase(self, job: Job) -> None:
        self._append(job, None)

    def _append(self, job: Job, value: bytes | None) -> None:
        key = job_key(job)
        self._log.append(JOBS, key, value, what=f"job {job.id}", headers=_HEADERS)


class JobsTaker(KeptInMemory):
    """Tells `Jobs` of those of earlier runs and of other processes."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def forget(self) -> None:
        """Those of this process go on."""

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        refused = []
        for record in records:
            try:
                if record.value is None:
                    self._jobs.forget(_job_id(record.key))
                else:
                    self._jobs.take(decode_job(record.key, record.value))
            except InvalidRecord as exc:
                refused.append(exc)
        return refused

    def complete(self) -> None:
        """Nothing waits for this."""


def job_key(job: Job) -> bytes:
    return f"{job.tenant}/{job.id}".encode()


def encode_job(job: Job) -> bytes:
    """Return the value of a record of `mqlake.jobs`; of a very large result only its numbers."""
    fields = {member: getattr(job, name) for member, name in _FIELDS.items()}
    value = _encode(fields)
    if len(value) > MAX_BYTES and job.result is not None:
        small = {name: one for name, one in job.result.items() if isinstance(one, int | None)}
        value = _encode(
            {**fields, "result": {**small, "left_out": "samples: too large to be kept"}}
        )
    return value


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps({"v": RECORD_VERSION, **fields}, ensure_ascii=False, default=str).encode()


def decode_job(key: bytes, value: bytes) -> Job:
    """Undo `encode_job`.

    Raises:
        InvalidRecord: Not of our version, or malformed.
    """
    try:
        found: dict[str, Any] = json.loads(value)
        check_version(found["v"], f"job {key!r}")
        return Job(_job_id(key), **{name: found[member] for member, name in _FIELDS.items()})
    except (KeyError, TypeError, ValueError) as exc:
        raise InvalidRecord(f"job {key!r} is malformed: {exc!r}") from exc


def _job_id(key: bytes) -> str:
    return key.decode(errors="replace").rpartition("/")[2]
