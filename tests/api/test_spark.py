"""What the API makes of a Spark that ends, and of one that does not stop."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import RpcError
from pyspark.errors.exceptions.connect import AnalysisException

from api.spark.connect import (
    MOST_ASKING,
    MOST_ASKING_OF_ONE,
    OPEN_SECONDS,
    QUERY_TIMEOUT_SECONDS,
    Cancelled,
    EvaluationError,
    OutOfMemory,
    Spark,
    SparkAway,
    SparkBusy,
    SparkConnect,
    SparkEnded,
)
from mqlake.processes.query_application import End
from rules.sql.confined import OWN_STATEMENT

pytestmark = pytest.mark.programs


class Session:
    """Spark Connect's, as far as `Spark` uses it."""

    is_stopped = False
    conf: Any = None

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.interrupted = threading.Event()

    def registerProgressHandler(self, handler: object) -> None:  # noqa: N802
        pass

    def interruptAll(self) -> None:  # noqa: N802
        self.interrupted.set()

    def sql(self, statement: str) -> None:
        self.statements.append(statement)


class Use:
    """A use whose Spark ends when it is told to, or has ended."""

    def __init__(self, end: End | None = None) -> None:
        self.told_end = threading.Event()
        self.reason = ""
        self._end = end

    def end(self, reason: str) -> None:
        self.reason = reason
        self.told_end.set()

    def ended(self) -> End | None:
        return self._end


def spark(session: Session, use: Use, tables: Path = Path("tables")) -> Spark:
    either: Any = session
    by: Any = use
    return Spark(either, by, tables)


def fails(error: Exception) -> Callable[[Any], None]:
    def work(_session: Any) -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("end", "expected", "said"),
    [
        (
            End("its heap of 640 MiB was full", "memory", was_alone=True),
            OutOfMemory,
            "this needs more memory than Spark has: its heap of 640 MiB was full",
        ),
        (
            End("its heap of 640 MiB was full", "memory", was_alone=False),
            SparkEnded,
            "ended before it had answered, or for what else it was asked: its heap",
        ),
        (
            End("it was killed by signal 9", "other", was_alone=True),
            SparkAway,
            "ended before it had answered: it was killed by signal 9",
        ),
        (None, SparkAway, "see: bin/mqlake status"),
    ],
)
def test_why_spark_ended_is_told(end: End | None, expected: type[Exception], said: str) -> None:
    with pytest.raises(expected, match=said):
        spark(Session(), Use(end)).perform(fails(RpcError()))


def test_spark_that_ends_before_a_session_has_its_settings_is_told() -> None:
    session = Session()
    session.conf = SimpleNamespace(set=lambda _key, _value: fails(RpcError())(session))
    end = End("it was killed by signal 9", "other", was_alone=True)
    with pytest.raises(SparkAway, match="it was killed by signal 9"):
        spark(session, Use(end)).configure({"spark.sql.session.timeZone": "UTC"})


def test_a_session_may_take_longer_to_open_than_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OPEN_SECONDS > QUERY_TIMEOUT_SECONDS
    monkeypatch.setattr("api.spark.connect.OPEN_SECONDS", 0.1)
    session = Session()

    def stop(_key: str, _value: str) -> None:
        assert session.interrupted.wait(60)
        raise AnalysisException("interrupted")

    session.conf = SimpleNamespace(set=stop)
    with pytest.raises(SparkAway, match=r"within 0\.1 s"):
        spark(session, Use()).configure({"spark.sql.session.timeZone": "UTC"})


@pytest.mark.parametrize("is_late", [True, False])
def test_a_query_that_does_not_stop_has_its_spark_ended(
    monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    monkeypatch.setattr("api.spark.connect.GRACE_SECONDS", 2.0)
    session, use = Session(), Use()

    def go_on(_session: Any) -> None:
        assert use.told_end.wait(60)
        raise RpcError

    asked = spark(session, use)
    if is_late:
        with pytest.raises(SparkAway, match=r"within 0\.1 s"):
            asked.perform(go_on, 0.1)
    else:
        with pytest.raises(Cancelled):
            asked.perform(go_on, is_cancelled=lambda: True)
    assert session.interrupted.is_set(), "it was asked to stop before"
    assert use.reason == "a query did not stop within 2 s"


def test_one_that_stops_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.spark.connect.GRACE_SECONDS", 20.0)
    session, use = Session(), Use()
    before = set(threading.enumerate())

    def stop(_session: Any) -> None:
        assert session.interrupted.wait(60)
        raise AnalysisException("interrupted")

    with pytest.raises(Cancelled):
        spark(session, use).perform(stop, is_cancelled=lambda: True)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)  # one of them would end it
    assert not use.told_end.is_set()


def unknown(name: str) -> AnalysisException:
    return AnalysisException(
        f"there is no {name}",
        errorClass="TABLE_OR_VIEW_NOT_FOUND",
        messageParameters={"relationName": name},
    )


def test_a_name_is_made_known_once(tmp_path: Path) -> None:
    for name, file in (("messages", f"{0:020}.json"), ("rule_new", f".{0:020}.json.tmp")):
        (tmp_path / name / "_delta_log").mkdir(parents=True)
        (tmp_path / name / "_delta_log" / file).touch()
    session = Session()
    asked = []

    def work(_session: Any) -> str:
        asked.append(len(session.statements))
        if not session.statements:
            raise unknown("`spark_catalog`.`default`.`messages`")
        return "rows"

    assert spark(session, Use(), tmp_path).perform(work) == "rows"
    assert asked == [0, 1]
    (made,) = session.statements
    assert made.startswith(
        f"{OWN_STATEMENT}CREATE TABLE IF NOT EXISTS spark_catalog.default.messages USING delta"
    )
    # A table that is being made has a folder, and no commit yet.
    for name in ("`elsewhere`.`messages`", "`nothing`", "`spark_catalog`.`default`.`rule_new`"):
        with pytest.raises(EvaluationError, match="there is no"):
            spark(session, Use(), tmp_path).perform(fails(unknown(name)))
    assert session.statements == [made]
    with pytest.raises(EvaluationError, match="there is no"):  # though it is made known again
        spark(session, Use(), tmp_path).perform(fails(unknown("messages")))


_COME_ONE_BY_ONE = """
import socket, sys, threading, time
from pathlib import Path
from api.spark.connect import SparkAway, SparkConnect
from mqlake.processes.query_application import Use
use = Use(socket.socketpair()[0])
failed = []
def come(number):
    time.sleep(number * 0.05)
    try:
        SparkConnect(Path(sys.argv[1])).open({}, use)
    except SparkAway:
        pass  # there is no token: that comes next
    except ImportError as exc:
        failed.append(str(exc))
threads = [threading.Thread(target=come, args=(number,)) for number in range(30)]
for thread in threads: thread.start()
for thread in threads: thread.join()
raise SystemExit("; ".join(failed) or 0)
"""
"""In a process of its own, for nothing may be loaded yet; each comes amid what another imports."""


def test_all_who_come_first_get_the_whole_client(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", _COME_ONE_BY_ONE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class StartingSpark(SparkConnect):
    """Is about to start, and then is not there."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.asked = threading.Semaphore(0)
        self.may_fail = threading.Event()

    @contextmanager
    def use(self, *_: object, **_more: object) -> Iterator[Any]:
        self.asked.release()
        assert self.may_fail.wait(60)
        raise SparkAway("it has not started")
        yield


def test_few_requests_wait_for_the_session_that_is_kept(tmp_path: Path) -> None:
    """Few of one tenant: others have their turn soon."""
    spark = StartingSpark(tmp_path)
    tenants = [f"t{number // MOST_ASKING_OF_ONE}" for number in range(MOST_ASKING)]
    with ThreadPoolExecutor(MOST_ASKING) as callers:
        answers = [callers.submit(spark.rows, "SELECT 1", tenant=one) for one in tenants[:-1]]
        try:
            for _ in answers:
                assert spark.asked.acquire(timeout=60)
            with pytest.raises(SparkBusy, match="try again later"):
                spark.rows("SELECT 1", tenant="t0")
            answers.append(callers.submit(spark.rows, "SELECT 1", tenant="t9"))
            assert spark.asked.acquire(timeout=60)
            with pytest.raises(SparkBusy, match="try again later"):
                spark.rows("SELECT 1", tenant="t10")
        finally:
            spark.may_fail.set()
        for one in answers:
            with pytest.raises(SparkAway, match="not started"):
                one.result(60)
    for _ in range(MOST_ASKING):
        with pytest.raises(SparkAway, match="not started"):
            spark.rows("SELECT 1", tenant="t0")
