import contextlib
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
