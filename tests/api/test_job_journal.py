"""Jobs outlive the process that does them."""

import threading
from typing import Any

import pytest

from api.jobs.jobs import BEAT_SECONDS, SILENT_MS, Job, JobElsewhere, Jobs, NotResumable
from api.jobs.journal import JobsTaker, decode_job, encode_job, job_key
from api.log.following import Followed
from launcher.testing.systems import await_condition
from mqlake.clock import ManualClock
from mqlake.errors import InvalidRecord, LogError
from mqlake.records.messages import JOBS
from tests.api.conftest import Api

REQUEST = {"version": 3, "rate": 10}


class MemoryJournal:
    """Records as they would be in the log."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.is_away = False

    def write(self, job: Job) -> None:
        self._append(job_key(job), encode_job(job))

    def erase(self, job: Job) -> None:
        self._append(job_key(job), None)

    def _append(self, key: bytes, value: bytes | None) -> None:
        if self.is_away:
            raise LogError("away", definite=False)
        self.records.append((key, value))

    def last(self, job: Job) -> Job | None:
        found = [value for key, value in self.records if key == job_key(job)]
        return None if not found or found[-1] is None else decode_job(job_key(job), found[-1])

    def read_by(self, jobs: Jobs) -> None:
        """Let another process, or the next one, read all."""
        followed = [
            Followed(JOBS, offset, key, value) for offset, (key, value) in enumerate(self.records)
        ]
        assert JobsTaker(jobs).take(followed, is_old=True) == []


class Site:
    """A process that runs jobs, and what it leaves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.jobs = Jobs(self.clock, self.journal)
        self.go = threading.Event()

    def work(self, job: Job) -> dict[str, Any]:
        job.place = {"next": {"0": 7}}
        job.advance(0.5, "half")
        while not self.go.wait(0.01):
            job.check()
        return {"done": True}

    def start(self, request: dict[str, Any] | None = REQUEST) -> Job:
        job = self.jobs.start("backfill", "default", "r1", self.work, request)
        await_condition(lambda: job.progress == 0.5, "it is at work")
        return job

    def next_run(self) -> Jobs:
        """Return what a process knows that is started after this one was killed."""
        jobs = Jobs(self.clock, self.journal)
        self.journal.read_by(jobs)
        return jobs


def known(jobs: Jobs, job: Job) -> Job:
    found = jobs.get(job.id)
    assert found is not None
    return found


def test_a_job_that_has_ended_is_listed_with_its_result_after_a_restart() -> None:
    site = Site()
    job = site.start()
    site.go.set()
    await_condition(lambda: site.journal.last(job).state == "succeeded", "it is noted")  # type: ignore[union-attr]
    jobs = site.next_run()
    (listed,) = jobs.all()
    assert (listed.id, listed.state, listed.result) == (job.id, "succeeded", {"done": True})
    assert (listed.created_at_ms, listed.finished_at_ms) == (job.created_at_ms, job.finished_at_ms)
    with pytest.raises(NotResumable):
        jobs.resume(job.id, site.work)
    assert jobs.cancel(job.id) is listed
    jobs.close()
    assert site.journal.last(job) is None
    assert site.next_run().all() == []
    site.jobs.close()


def test_a_job_whose_process_was_killed_is_interrupted_and_goes_on_where_it_was() -> None:
    site = Site()
    job = site.start()
    await_condition(
        lambda: (site.journal.last(job) or job).place == {"next": {"0": 7}}, "its place is noted"
    )
    jobs = site.next_run()
    assert known(jobs, job).state == "running"
    with pytest.raises(JobElsewhere):
        jobs.cancel(job.id)
    with pytest.raises(NotResumable, match="running"):
        jobs.resume(job.id, site.work)
    site.clock.advance(SILENT_MS / 1000 + 1)
    assert known(jobs, job).state == "interrupted"
    places: list[Any] = []

    def go_on(resumed: Job) -> dict[str, Any]:
        places.append(resumed.place)
        return {"resumed": True}

    resumed = jobs.resume(job.id, go_on)
    await_condition(lambda: resumed.finished_at is not None, "it is done")
    assert (resumed.id, resumed.request, resumed.result) == (job.id, REQUEST, {"resumed": True})
    assert places == [{"next": {"0": 7}}]
    jobs.close()
    # What the old process still says of it counts no more here.
    site.journal.read_by(jobs)
    assert known(jobs, job).state == "succeeded"
    site.jobs.close()


def test_a_process_that_ends_interrupts_its_jobs() -> None:
    site = Site()
    job = site.start()
    site.jobs.close()
    noted = site.journal.last(job)
    assert noted is not None
    assert (noted.state, noted.progress) == ("interrupted", 0.5)
    assert known(site.next_run(), job).state == "interrupted"


def test_a_job_that_runs_is_noted_again_and_again() -> None:
    site = Site()
    job = site.start()
    before = len(site.journal.records)
    await_condition(lambda: len(site.journal.records) > before + 1, "twice")
    site.clock.advance(SILENT_MS / 1000 + 1)
    await_condition(
        lambda: (site.journal.last(job) or job).noted_at_ms == site.clock.now_ms(),
        f"within {BEAT_SECONDS} s",
    )
    assert known(site.next_run(), job).state == "running"
    site.jobs.close()


def test_without_a_log_no_job_begins_and_one_that_runs_goes_on() -> None:
    site = Site()
    job = site.start()
    site.journal.is_away = True
    with pytest.raises(LogError):
        site.jobs.start("backfill", "default", "r2", site.work, REQUEST)
    assert site.jobs.all() == [job]
    site.go.set()
    await_condition(lambda: job.finished_at is not None, "it is done")
    site.journal.is_away = False
    await_condition(
        lambda: (site.journal.last(job) or job).result == {"done": True}, "it is noted after all"
    )
    site.jobs.close()


def test_a_job_without_a_request_is_not_resumed() -> None:
    site = Site()
    job = site.start(None)
    site.jobs.cancel(job.id)
    await_condition(lambda: job.state == "cancelled", "it has ended")
    with pytest.raises(NotResumable):
        site.jobs.resume(job.id, site.work)
    site.jobs.close()


def test_of_a_very_large_result_the_numbers_are_kept() -> None:
    result = {"matched": 7, "samples": ["x" * 1_000] * 1_000, "difference": None}
    job = Job("1", "dry_run", "default", "r1", 0, result=result)
    value = encode_job(job)
    assert len(value) < 2_000
    kept = decode_job(job_key(job), value).result
    assert kept is not None
    assert (kept["matched"], kept["difference"], "samples" in kept) == (7, None, False)


def test_records_of_others_are_refused() -> None:
    for value in (b"", b"[]", b'{"v": 2}', b'{"v": 1, "kind": "x"}'):
        with pytest.raises(InvalidRecord):
            decode_job(b"default/1", value)
    jobs = Jobs(ManualClock())
    (refused,) = JobsTaker(jobs).take([Followed(JOBS, 0, b"default/1", b"x")], is_old=True)
    assert "default/1" in str(refused)
    jobs.forget("unknown")


def test_a_job_is_resumed_by_rest(api: Api) -> None:
    assert api.request("POST", "/jobs/nothing/resume").status_code == 404
    job = Job("77", "audit", "default", "r1", 0, state="interrupted", request={}, finished_at_ms=0)
    api.services.runs.jobs.take(job)
    answer = api.request("POST", "/jobs/77/resume")
    assert (answer.status_code, answer.json()["detail"]) == (
        *(409,),
        "a job of the kind audit cannot be resumed",
    )
    range_ = {"from_ms": None, "to_ms": None, "table_version": None, "limit": 5}
    request = {"sql": "SELECT * FROM 'a'", "range": range_, "other": None}
    job = Job("78", "dry_run", "default", "r1", 0, state="failed", request=request)
    job.finished_at_ms = 0
    api.services.runs.jobs.take(job)
    answer = api.request("POST", "/jobs/78/resume")
    assert answer.status_code == 202
    assert answer.json()["id"] == "78"
    for state in ("succeeded", "running"):
        done = Job("79", "dry_run", "default", "r1", 0, state=state, request=request)
        done.noted_at_ms = api.clock.now_ms()
        api.services.runs.jobs.take(done)
        assert api.request("POST", "/jobs/79/resume").status_code == 409
