import contextlib
import shutil
from pathlib import Path

import pytest

from ingest.gateway.store.database import FILE_NAME, Database
from mqlake.errors import OperationalError


def test_a_batch_may_stand_in_a_batch(database: Database) -> None:
    database.create("CREATE TABLE t (x INTEGER)")
    with database.batch():
        database.write("INSERT INTO t VALUES (?)", (1,))
        with database.batch():
            database.write("INSERT INTO t VALUES (?), (?)", (2, 3))
        database.write("INSERT INTO t VALUES (4)")
    assert database.rows("SELECT x FROM t ORDER BY x") == [(1,), (2,), (3,), (4,)]
    assert database.row("SELECT x FROM t WHERE x > 4") is None


def test_an_error_in_a_batch_leaves_the_store_usable(database: Database) -> None:
    database.create("CREATE TABLE t (x INTEGER)")
    with contextlib.suppress(OperationalError), database.batch():
        database.write("INSERT INTO t VALUES (1)")
        database.write("INSERT INTO absent VALUES (1)")
    assert database.write("INSERT INTO t VALUES (2)") == 1
    assert database.rows("SELECT count(*) FROM t") == [(2,)]


def test_what_an_earlier_run_left_is_gone(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "here"
    for _ in range(2):
        database = Database(directory)
        database.create("CREATE TABLE t (x INTEGER)")
        database.write("INSERT INTO t VALUES (1)")
        assert database.rows("SELECT x FROM t") == [(1,)]
        database.close()
    (directory / FILE_NAME).write_bytes(b"not a database" * 1000)
    Database(directory).close()


def test_a_directory_that_cannot_be_written_is_an_operational_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OperationalError, match="the gateway's store"):
        Database(tmp_path / "file")


def test_what_sqlite_refuses_is_an_operational_error(database: Database) -> None:
    with pytest.raises(OperationalError, match="no such table"):
        database.row("SELECT 1 FROM absent")
    with pytest.raises(OperationalError, match="no such table"):
        database.rows("SELECT 1 FROM absent")
    with pytest.raises(OperationalError, match="no such table"):
        database.write("DELETE FROM absent")
    with pytest.raises(OperationalError, match="syntax"):
        database.create("CREATE absent")
    with pytest.raises(OperationalError, match="no such table"), database.scan("SELECT * FROM no"):
        pass


KEPT = {"gateway": "gateway-1", "boot": "1"}


def kept(directory: Path, **other: str) -> Database:
    database = Database(directory, "kept.sqlite", {**KEPT, **other})
    if not database.is_kept:
        database.create("CREATE TABLE t (x BLOB)")
    return database


def test_a_store_with_an_identity_is_gone_on_with(tmp_path: Path) -> None:
    for count in range(3):
        database = kept(tmp_path)
        assert database.is_kept is (count > 0)
        assert database.rows("SELECT count(*) FROM t") == [(count,)]
        database.write("INSERT INTO t VALUES (1)")
        database.close()


@pytest.mark.parametrize("name", KEPT)
def test_a_store_with_another_identity_is_thrown_away(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = kept(tmp_path)
    first.write("INSERT INTO t VALUES (1)")
    first.close()
    for _ in range(2):
        database = kept(tmp_path, **{name: "other"})
        assert database.rows("SELECT count(*) FROM t") == [(0,)]
        database.close()
    (said,) = caplog.records
    assert said.getMessage() == "a kept store is thrown away"
    assert f"{name} is {KEPT[name]}, expected other" in str(vars(said)["fields"])


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000])
def test_a_store_that_is_none_is_thrown_away(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kept.sqlite").write_bytes(content)
    database = kept(tmp_path)
    assert not database.is_kept
    database.close()
    assert len(caplog.records) == 1


def test_a_store_that_has_no_tables_yet_is_thrown_away(tmp_path: Path) -> None:
    Database(tmp_path, "kept.sqlite", KEPT).close()
    assert not Database(tmp_path, "kept.sqlite", KEPT).is_kept


def test_what_a_kill_interrupts_was_never_written(tmp_path: Path) -> None:
    database = kept(tmp_path / "a")
    database.write("INSERT INTO t VALUES (1)")
    for _ in range(40):  # more than the cache has: pages are in the file before the batch is over
        database.write("INSERT INTO t VALUES (zeroblob(1000000))")
    with database.batch():
        database.write("UPDATE t SET x = zeroblob(1000001)")
        database.write("DELETE FROM t WHERE rowid = 1")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    before, after = kept(tmp_path / "b"), database
    sizes = "SELECT length(x), count(*) FROM t GROUP BY 1 ORDER BY 1"
    assert before.rows(sizes) == [(1, 1), (1_000_000, 40)]
    assert after.rows(sizes) == [(1_000_001, 40)]
    assert (tmp_path / "b" / "kept.sqlite").stat().st_size > 30_000_000


def test_what_fails_is_not_gone_on_with(tmp_path: Path) -> None:
    database = kept(tmp_path)
    with pytest.raises(OperationalError, match="no such table"):
        database.row("SELECT 1 FROM absent")
    assert not list(tmp_path.iterdir())
    database.close()
    assert not kept(tmp_path).is_kept


def test_who_asks_a_closed_store_finds_no_fault_of_its_file(tmp_path: Path) -> None:
    database = kept(tmp_path)
    database.close()
    with pytest.raises(OperationalError, match="closed"):
        database.rows("SELECT x FROM t")
    assert kept(tmp_path).is_kept


def test_a_journal_without_its_store_is_of_no_other(tmp_path: Path) -> None:
    database = kept(tmp_path / "a")
    with database.batch():
        for _ in range(40):
            database.write("INSERT INTO t VALUES (zeroblob(1000000))")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "kept.sqlite").unlink()
    other = kept(tmp_path / "b")
    other.write("INSERT INTO t VALUES (1)")
    assert other.rows("SELECT x FROM t") == [(1,)]


def test_a_store_that_another_process_has_is_thrown_away(tmp_path: Path) -> None:
    first = kept(tmp_path)
    second = kept(tmp_path)
    assert not second.is_kept
    first.write("INSERT INTO t VALUES (1)")
    assert second.rows("SELECT count(*) FROM t") == [(0,)]
