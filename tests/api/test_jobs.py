import threading
from typing import Any

import pytest

from api.jobs.jobs import (
    KEPT_SECONDS,
    MAX_KEPT,
    MAX_WAITING,
    MOST_WAITING,
    WAITING_WORKERS,
    WORKERS,
    Job,
    Jobs,
    TooManyJobs,
)
from api.spark.connect import Cancelled
from launcher.testing.systems import await_condition
from mqlake.clock import ManualClock
from mqlake.errors import MqlakeError
from tests.api.conftest import Api


def start(jobs: Jobs, work: Any, rule_id: str = "r1") -> Job:
    return jobs.start("dry_run", "default", rule_id, work)


def await_end(job: Job) -> None:
    await_condition(lambda: job.finished_at is not None, "the job has ended")


def test_a_job_has_progress_an_end_and_a_result(api: Api) -> None:
    jobs: Jobs = api.services.runs.jobs
    go = threading.Event()

    def work(job: Job) -> dict[str, Any]:
        job.advance(0.5, "half")
        assert go.wait(60)
        return {"done": True}

    job = start(jobs, work)
    await_condition(lambda: job.progress > 0, "it has begun")
    shown = api.get(f"/jobs/{job.id}")
    assert (shown["state"], shown["progress"], shown["note"]) == ("running", 0.5, "half")
    assert (shown["result"], shown["finished_at"]) == (None, None)
    go.set()
    await_end(job)
    shown = api.get(f"/jobs/{job.id}")
    assert (shown["state"], shown["progress"], shown["result"]) == ("succeeded", 1, {"done": True})
    (listed,) = api.get("/jobs", rule_id="r1")["items"]
    assert listed == {**shown, "result": None}
    assert api.get("/jobs", rule_id="r2")["items"] == []
    assert api.request("DELETE", f"/jobs/{job.id}").status_code == 202
    for method in ("GET", "DELETE"):
        assert api.request(method, f"/jobs/{job.id}").status_code == 404


def test_what_an_administrator_has_begun_an_editor_does_not_end(api: Api) -> None:
    jobs: Jobs = api.services.runs.jobs
    go = threading.Event()

    def work(job: Job) -> dict[str, Any]:
        assert go.wait(60)
        job.check()
        return {}

    deletion = jobs.start("delete_history", "default", "", work)
    dry_run = start(jobs, work)
    made = api.request("POST", "/keys", json={"role": "editor", "description": "a test"})
    editor = {"Authorization": f"Bearer {made.json()['key']}"}
    answer = api.request("DELETE", f"/jobs/{deletion.id}", editor)
    assert answer.status_code == 403
    assert "for the role admin" in answer.json()["detail"]
    assert not deletion.cancelling.is_set()
    assert api.request("DELETE", f"/jobs/{dry_run.id}", editor).status_code == 202
    assert api.request("DELETE", f"/jobs/{deletion.id}").status_code == 202
    assert deletion.cancelling.is_set()
    go.set()
    await_end(deletion)
    await_end(dry_run)
    # Nor does it forget that there was one.
    assert api.request("DELETE", f"/jobs/{deletion.id}", editor).status_code == 403


@pytest.mark.parametrize(
    ("error", "said"), [(MqlakeError("no table"), "no table"), (KeyError("x"), "an unexpected")]
)
def test_what_a_job_raises_is_its_error(error: Exception, said: str) -> None:
    def work(_job: Job) -> dict[str, Any]:
        raise error

    jobs = Jobs(ManualClock())
    job = start(jobs, work)
    await_end(job)
    assert job.state == "failed"
    assert job.error is not None
    assert job.error.startswith(said)
    jobs.close()


def test_few_run_at_once_more_wait_and_too_many_are_refused() -> None:
    go = threading.Event()
    jobs = Jobs(ManualClock())

    def work(job: Job) -> dict[str, Any]:
        while not go.wait(0.01):
            job.check()
        return {}

    running = [start(jobs, work) for _ in range(WORKERS)]
    await_condition(lambda: all(job.state == "running" for job in running), "they run")
    waiting = [start(jobs, work) for _ in range(MAX_WAITING)]
    with pytest.raises(TooManyJobs):
        start(jobs, work)
    assert jobs.cancel(waiting[0].id) is waiting[0]
    assert waiting[0].state == "cancelled"
    jobs.cancel(running[0].id)
    await_end(running[0])
    assert running[0].state == "cancelled"
    go.set()
    for job in waiting[1:]:
        await_end(job)
    assert {job.state for job in waiting[1:]} == {"succeeded"}
    assert jobs.cancel("unknown") is None
    jobs.close()


def test_one_tenants_jobs_keep_no_other_tenant_waiting_for_all_of_them() -> None:
    go = threading.Event()
    jobs = Jobs(ManualClock())
    done: list[str] = []

    def work(job: Job) -> dict[str, Any]:
        assert go.wait(60)
        done.append(job.tenant)
        return {}

    def begin(tenant: str) -> Job:
        return jobs.start("dry_run", tenant, "r", work)

    running = [begin("acme") for _ in range(WORKERS)]
    await_condition(lambda: all(job.state == "running" for job in running), "they run")
    mine = [begin("acme") for _ in range(MAX_WAITING)]
    with pytest.raises(TooManyJobs):
        begin("acme")
    theirs = [begin("beta") for _ in range(MAX_WAITING // 2)]
    with pytest.raises(TooManyJobs):
        begin("beta")
    go.set()
    for job in (*running, *mine, *theirs):
        await_end(job)
    first = done[: 2 * len(theirs)]
    assert first.count("beta") >= len(theirs) - WORKERS, "they take turns"
    assert len(done) == WORKERS + len(mine) + len(theirs)
    jobs.close()


def test_whoever_asks_there_are_no_more_jobs_than_can_be_kept() -> None:
    go = threading.Event()
    jobs = Jobs(ManualClock())

    def work(_job: Job) -> dict[str, Any]:
        assert go.wait(60)
        return {}

    running = [jobs.start("dry_run", "acme", "r", work) for _ in range(WORKERS)]
    await_condition(lambda: all(job.state == "running" for job in running), "they run")
    waiting = [jobs.start("dry_run", f"t{number}", "r", work) for number in range(MOST_WAITING)]
    with pytest.raises(TooManyJobs):
        jobs.start("dry_run", "new", "r", work)
    go.set()
    for job in (*running, *waiting):
        await_end(job)
    jobs.close()


def test_old_jobs_are_forgotten() -> None:
    clock = ManualClock()
    jobs = Jobs(clock)
    for _ in range(MAX_KEPT + 5):
        await_end(start(jobs, lambda _job: {}))
    assert len(jobs.all()) == MAX_KEPT
    clock.advance(KEPT_SECONDS + 1)
    assert jobs.all() == []
    jobs.close()


def test_a_cancelled_job_says_so_where_it_looks() -> None:
    job = Job("1", "dry_run", "default", "r1", 0)
    job.check()
    job.cancelling.set()
    with pytest.raises(Cancelled):
        job.check()


def test_jobs_are_listed_a_page_at_a_time_the_newest_first(api: Api) -> None:
    jobs: Jobs = api.services.runs.jobs
    started = [start(jobs, lambda _job: {}) for _ in range(5)]
    for job in started:
        await_end(job)
    found: list[Any] = []
    cursor = None
    while True:
        page = api.get("/jobs", limit=2, **({} if cursor is None else {"cursor": cursor}))
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert {one["id"] for one in found} == {job.id for job in started}
    assert len(found) == 5
    times = [one["created_at"] for one in found]
    assert times == sorted(times, reverse=True)


def test_a_job_that_waits_for_hours_keeps_no_other_from_running() -> None:
    jobs = Jobs(ManualClock())
    go = threading.Event()

    def wait(_job: Job) -> dict[str, Any]:
        assert go.wait(60)
        return {}

    replays = [jobs.start("replay", "default", "", wait) for _ in range(WAITING_WORKERS)]
    await_condition(lambda: all(one.state == "running" for one in replays), "all run")
    other = start(jobs, lambda _job: {"done": True})
    await_end(other)
    assert {one.state for one in replays} == {"running"}
    go.set()
    for one in replays:
        await_end(one)
    jobs.close()
