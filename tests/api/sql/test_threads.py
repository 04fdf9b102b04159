"""Queries that run and wait keep nobody else from the API."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.sql.results import Result
from api.sql.running import QueryRunner
from api.sql.slots import MOST_WAITING_OF_ONE
from tests.api.conftest import Api
from tests.api.sql.for_spark import NoFiles
from tests.api.sql.test_running import Session
from tests.api.test_access import bearer, make_key
from tests.api.test_api import TOKEN
from tests.api.test_entrance import served
from tests.pace import within

AT_ONCE = 2
MORE = 5
"""Queries beyond those that may run and wait."""
THREADS = 6
"""That an event loop has for all that blocks, on the smallest machine that mqlake runs on."""


class SlowSpark:
    """Answers when it may."""

    java_pid = 1
    has_ended_it = False

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.target = Path()

    @contextmanager
    def use(self, is_cancelled: Any) -> Iterator["SlowSpark"]:
        yield self

    def open(self, *_: object) -> Session:
        return Session(self)  # type: ignore[arg-type]

    def answer(self, _sql: str) -> Result:
        assert self.may_answer.wait(60)
        return Result((), (), 0, False)


class SlowRunner(QueryRunner):
    """Its queries wait for a slot for long; counts those that have a thread."""

    def __init__(self, spark: SlowSpark, folder: Path) -> None:
        super().__init__(spark, NoFiles(), folder, AT_ONCE, wait_seconds=60.0)  # type: ignore[arg-type]
        self.begun = threading.Semaphore(0)

    @contextmanager
    def run(self, *arguments: Any, **more: Any) -> Iterator[Result]:
        self.begun.release()
        with super().run(*arguments, **more) as result:
            yield result


@pytest.mark.promise
def test_queries_of_one_tenant_keep_nobody_else_from_the_api(api: Api, tmp_path: Path) -> None:
    spark = SlowSpark()
    runner = SlowRunner(spark, tmp_path / "results")
    api.put_in("queries", runner=runner)
    key = bearer(make_key(api, tenants=["acme"])["key"])
    asked = AT_ONCE + MOST_WAITING_OF_ONE + MORE
    with served(api) as port, ThreadPoolExecutor(asked) as callers:
        url = f"http://127.0.0.1:{port}/api/v1"

        def ask(_number: int) -> int:
            query = {"query": "SELECT 1"}
            answer = httpx.post(
                f"{url}/sql?tenant=acme", json=query, headers=key, timeout=within(60)
            )
            return answer.status_code

        answers = [callers.submit(ask, number) for number in range(asked)]
        try:
            for _ in range(THREADS):
                assert runner.begun.acquire(timeout=within(30))
            # It opens a session, and is a row of the audit log.
            login = httpx.post(f"{url}/login", json={"token": TOKEN}, timeout=within(10))
            assert login.status_code == 200
            refused = islice(as_completed(answers, within(30)), MORE)
            assert [one.result() for one in refused] == [503] * MORE
        finally:
            spark.may_answer.set()
        found = sorted(one.result() for one in answers)
    assert found == [200] * (AT_ONCE + MOST_WAITING_OF_ONE) + [503] * MORE
