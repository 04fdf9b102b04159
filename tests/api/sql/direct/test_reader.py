"""A small question is answered from files, by a process that harms nobody but itself."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from api.spark.connect import Cancelled
from api.sql.checking import check
from api.sql.direct.questions import Shown, SmallQuestion
from api.sql.direct.reader import TableFiles
from api.sql.errors import QueryTimeoutError
from api.sql.results import write
from api.sql.running import QueryLimits, QueryRunner
from mqlake.tables.catalogue import MESSAGES
from tests.ingest.gateway.lake.tables import append

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[4]
LIMITS = QueryLimits(rows=1_000, seconds=60, bytes=1 << 20)


def wanted() -> bool:
    return False


class NoSpark:
    """Is asked nothing."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"Spark was asked: {name}")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    add(folder, 5)
    return folder


def heavy() -> SmallQuestion:
    """Return all rows of all rows: more groups than there is memory for."""
    names = [f"k{number}" for number in range(9)]
    keys = ", ".join(f"concat({name}.topic, {name}.tenant) AS {name}" for name in names)
    pairs = " CROSS JOIN ".join(f"messages AS {name}" for name in names)
    sql = f"SELECT count(*) AS c0 FROM (SELECT DISTINCT {keys} FROM {pairs}) AS found"
    return SmallQuestion("messages", sql, (Shown("n", "bigint"),))


HEAVY = heavy()


def add(folder: Path, count: int) -> None:
    rows = [
        {"tenant": tenant, "topic": f"t/{number}", "payload": b'{"b": 1, "a": "x"}', "ts": number}
        for number in range(count)
        for tenant in ("default", "other")
    ]
    append(folder, MESSAGES, rows)


@pytest.fixture
def files(data_dir: Path) -> Iterator[TableFiles]:
    with closing(TableFiles(data_dir / "tables")) as found:
        yield found


def question(sql: str) -> SmallQuestion:
    found = check(sql, "default").question
    assert found is not None
    return found


def children() -> list[psutil.Process]:
    found = psutil.Process().children()
    return [one for one in found if "api.sql.direct.worker" in " ".join(one.cmdline())]


def test_a_query_is_answered_without_spark(files: TableFiles, tmp_path: Path) -> None:
    spark: Any = NoSpark()
    runner = QueryRunner(spark, files, tmp_path / "results", at_once=1)
    texts = {
        "SELECT payload, topic FROM messages ORDER BY topic LIMIT 1": b'[{"a":"x","b":1}, "t/0"]',
        "SELECT count(*) FROM messages": b"[5]",
    }
    for sql, row in texts.items():
        with runner.run(check(sql, "default"), "json", LIMITS) as result:
            assert row in b"".join(write(result, "json"))
    assert list((tmp_path / "results").iterdir()) == []


def test_an_answer_is_of_the_newest_version(tmp_path: Path) -> None:
    add(tmp_path, 1)
    with closing(TableFiles(tmp_path / "tables")) as files:
        asked = question("SELECT topic FROM messages")
        assert files.answer(asked, 100, tmp_path / "one", wanted) == 1
        add(tmp_path, 2)
        assert files.answer(asked, 100, tmp_path / "two", wanted) == 3


def test_another_process_answers_when_one_has_ended(files: TableFiles, tmp_path: Path) -> None:
    asked = question("SELECT topic FROM messages")
    assert files.answer(asked, 3, tmp_path / "one", wanted) == 3
    (child,) = children()
    child.kill()
    child.wait()
    assert files.answer(asked, 3, tmp_path / "two", wanted) == 3
    assert child not in children()


def test_what_cannot_be_answered_is_for_spark(files: TableFiles, tmp_path: Path) -> None:
    assert files.answer(question("SELECT * FROM sessions"), 9, tmp_path / "one", wanted) is None
    broken = SmallQuestion("messages", "SELECT nothing AS c0 FROM messages", ())
    assert files.answer(broken, 9, tmp_path / "two", wanted) is None
    assert files.answer(question("SELECT id FROM messages"), 9, tmp_path / "three", wanted) == 5


def test_who_takes_too_much_memory_ends_alone(files: TableFiles, tmp_path: Path) -> None:
    assert files.answer(HEAVY, 9, tmp_path / "one", wanted) is None
    assert children() == []
    assert files.answer(question("SELECT id FROM messages"), 9, tmp_path / "two", wanted) == 5


def test_a_process_ends_with_who_has_started_it(data_dir: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from api.sql.direct.reader import TableFiles\n"
        "from tests.api.sql.direct.test_reader import HEAVY\n"
        "files = TableFiles(Path(sys.argv[1]))\n"
        "files.answer(HEAVY, 9, Path(sys.argv[2]), lambda: print('asked', flush=True))"
    )
    arguments = [str(data_dir / "tables"), str(tmp_path / "one")]
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, cwd=ROOT
    ) as asker:
        assert asker.stdout is not None
        assert asker.stdout.readline() == b"asked\n"
        (child,) = psutil.Process(asker.pid).children()
        asker.kill()
    assert child.wait(30) is None


def test_what_nobody_wants_is_given_up(files: TableFiles, tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        files.answer(question("SELECT id FROM messages"), 9, tmp_path / "one", lambda: True)
    assert children() == []


def test_a_query_that_takes_too_long_is_told(files: TableFiles, tmp_path: Path) -> None:
    spark: Any = NoSpark()
    runner = QueryRunner(spark, files, tmp_path / "results", at_once=1)
    limits = QueryLimits(rows=1, seconds=0.0, bytes=1)
    checked = check("SELECT id FROM messages", "default")
    with pytest.raises(QueryTimeoutError), runner.run(checked, "json", limits):
        pass


def test_close_ends_a_question_under_way(data_dir: Path, tmp_path: Path) -> None:
    files = TableFiles(data_dir / "tables")
    found: list[int | None] = []
    is_asked = threading.Event()

    def is_unwanted() -> bool:
        is_asked.set()
        return False

    asked = question("SELECT id FROM messages")
    thread = threading.Thread(
        target=lambda: found.append(files.answer(asked, 9, tmp_path / "one", is_unwanted))
    )
    thread.start()
    assert is_asked.wait(30)
    files.close()
    thread.join(30)
    assert found in ([None], [5])
    assert children() == []
