"""Who runs when Spark ends in a query, and what the others notice; Spark is made up."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from api.spark.connect import Cancelled, OutOfMemory, SparkAway, SparkEnded
from api.sql.brake import EndsSparkError
from api.sql.checking import check
from api.sql.errors import QueryMemoryError, QueryTimeoutError
from api.sql.results import Result
from api.sql.room import NoRoomError
from api.sql.running import QueryLimits, QueryRunner, readable
from mqlake.errors import MqlakeError
from mqlake.records.rule_tables import rule_table
from tests.api.sql.for_spark import NoFiles

GREEDY = "SELECT 'greedy' AS who"
MODEST = "SELECT 'modest' AS who"
SECONDS = 20.0


class MadeUpSpark:
    """Ends for all who ask it at first, one of whom is greedy.

    Args:
        at_once: It answers no first question before so many are asked.
    """

    def __init__(self, at_once: int) -> None:
        self.java_pid = 1
        self.target = Path()
        self.has_ended_it = False
        self._barrier = threading.Barrier(at_once)
        self._met = threading.local()
        self._lock = threading.Lock()
        self._asking: list[str] = []

    @contextmanager
    def use(self, is_cancelled: Callable[[], bool]) -> Iterator["MadeUpSpark"]:
        assert not is_cancelled()
        yield self

    def open(self, _settings: object, _use: object, _functions: object) -> "Session":
        return Session(self)

    def answer(self, sql: str) -> Result:
        with self._lock:
            self._asking.append(sql)
        if not getattr(self._met, "once", False):
            self._met.once = True
            self._barrier.wait(SECONDS)  # all are asking
            is_greedy = any("greedy" in one for one in self._asking)
            self._barrier.wait(SECONDS)  # all have looked
            self._asking.remove(sql)
            self._barrier.wait(SECONDS)  # nobody asks
            assert is_greedy
            raise SparkEnded("its heap was full")
        alone = len(self._asking) == 1
        self._asking.remove(sql)
        assert alone, "a second time each is asked by itself"
        if "greedy" in sql:
            self.java_pid += 1
            raise OutOfMemory("this needs more memory than Spark has")
        return Result((), (), 0, False)


class Session:
    """A session of it, as `api.spark.connect.Spark` is one."""

    def __init__(self, spark: MadeUpSpark) -> None:
        self._spark = spark

    def is_there(self, _use: object) -> bool:
        return True

    def perform(self, work: Any, _seconds: float, *, is_cancelled: Callable[[], bool]) -> Result:
        assert not is_cancelled()
        self._spark.target = work.__self__._target
        return self._spark.answer(work.__self__._query.sql)

    def close(self) -> None:
        pass


def runner(spark: Any, folder: Path) -> QueryRunner:
    return QueryRunner(spark, NoFiles(), folder / "results", at_once=3)


def ask(queries: QueryRunner, sql: str, found: dict[str, object], name: str) -> None:
    limits = QueryLimits(rows=10, seconds=SECONDS, bytes=1_000)
    try:
        with queries.run(check(sql, "default"), "json", limits, caller=name) as result:
            found[name] = result
    except MqlakeError as exc:
        found[name] = exc


def test_a_query_that_ends_spark_fails_alone(tmp_path: Path) -> None:
    queries = runner(MadeUpSpark(at_once=3), tmp_path)
    found: dict[str, object] = {}
    asked = {"greedy": GREEDY, "one": MODEST, "two": MODEST}
    threads = [
        threading.Thread(target=ask, args=(queries, sql, found, name))
        for name, sql in asked.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert isinstance(found["greedy"], QueryMemoryError), found
    assert isinstance(found["one"], Result), found
    assert isinstance(found["two"], Result), found


class EndingSpark(MadeUpSpark):
    """Ends whenever it is asked; somebody else is always asking, too."""

    def __init__(self) -> None:
        super().__init__(at_once=1)
        self.asked = 0

    def answer(self, sql: str) -> Result:
        self.asked += 1
        raise SparkEnded(f"not for {sql}")


def test_a_query_is_asked_twice_and_not_more_often(tmp_path: Path) -> None:
    spark = EndingSpark()
    found: dict[str, object] = {}
    ask(runner(spark, tmp_path), MODEST, found, "one")
    assert isinstance(found["one"], SparkAway)
    assert spark.asked == 2


class FullSpark(MadeUpSpark):
    """Its heap is full whenever somebody greedy asks, alone."""

    def __init__(self) -> None:
        super().__init__(at_once=1)

    def answer(self, sql: str) -> Result:
        if "greedy" not in sql:
            return Result((), (), 0, False)
        self.java_pid += 1
        raise OutOfMemory("this needs more memory than Spark has")


def test_who_has_ended_spark_twice_waits_and_others_do_not(tmp_path: Path) -> None:
    queries = runner(FullSpark(), tmp_path)
    found: dict[str, object] = {}
    for sql in (GREEDY, MODEST, GREEDY):
        ask(queries, sql, found, "key:greedy")
    assert isinstance(found["key:greedy"], QueryMemoryError)
    ask(queries, MODEST, found, "key:greedy")
    error = found["key:greedy"]
    assert isinstance(error, EndsSparkError)
    assert "your queries have ended the query application 2 times" in str(error)
    assert 0 < error.retry_seconds <= 600
    ask(queries, MODEST, found, "key:other")
    assert isinstance(found["key:other"], Result)


class StubbornSpark(FullSpark):
    """Does not end what it does when it is asked to, and is ended by that use."""

    def answer(self, sql: str) -> Result:
        self.java_pid += 1
        self.has_ended_it = True
        raise Cancelled(sql)


def test_who_leaves_no_other_way_than_to_end_spark_waits_too(tmp_path: Path) -> None:
    queries = runner(StubbornSpark(), tmp_path)
    found: dict[str, object] = {}
    for _ in range(3):
        ask(queries, MODEST, found, "key:slow")
    assert isinstance(found["key:slow"], EndsSparkError)


class WritingSpark(MadeUpSpark):
    """Writes results of 200,000 bytes."""

    def __init__(self) -> None:
        super().__init__(at_once=1)

    def answer(self, sql: str) -> Result:
        self.target.mkdir()
        (self.target / "part-0.parquet").write_bytes(b"x" * 200_000)
        return Result((), (), 0, False)


def test_a_result_keeps_its_room_until_it_is_gone(tmp_path: Path) -> None:
    spark: Any = WritingSpark()
    queries = QueryRunner(spark, NoFiles(), tmp_path / "results", 3, most_bytes=300_000)
    limits = QueryLimits(rows=10, seconds=SECONDS, bytes=300_000)
    query = check(MODEST, "default")
    with queries.run(query, "csv", limits, caller="ann"):
        with (
            pytest.raises(NoRoomError, match="your results"),
            queries.run(query, "csv", limits, caller="ann"),
        ):
            pass
        with queries.run(query, "csv", limits, caller="bob"):
            assert len(list((tmp_path / "results").iterdir())) == 2
    with queries.run(query, "csv", limits, caller="ann"):
        assert len(list((tmp_path / "results").iterdir())) == 1
    assert not list((tmp_path / "results").iterdir())


def test_a_second_turn_that_comes_too_late_is_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = runner(EndingSpark(), tmp_path)
    monkeypatch.setattr("tests.api.sql.test_running.SECONDS", 0.2)
    found: dict[str, object] = {}
    with queries._second_turn:
        ask(queries, MODEST, found, "one")
    assert isinstance(found["one"], QueryTimeoutError), found


def test_an_error_calls_a_table_of_rules_as_its_users_do() -> None:
    named = ".".join(f"`{one}`" for one in ("spark_catalog", "default", "{}"))
    for tenant in ("default", "acme"):
        table = named.format(rule_table(tenant, "rule_x"))
        said = readable(ValueError(f"The table or view {table} cannot be found."))
        assert said == "The table or view `rule_x` cannot be found"
