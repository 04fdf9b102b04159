"""`mqlake sql` against the application behind a real server; results are files, without Spark."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from api.sql.checking import CheckedQuery
from api.sql.results import Format, Result, ResultColumn
from api.sql.running import QueryLimits
from cli.app import mqlake
from cli.requests.sql import _to_array, _to_table
from mqlake.errors import OperationalError
from tests.api.conftest import Api, api
from tests.api.test_completeness import say_complete
from tests.mqlake.test_api_client import served

__all__ = ["api", "served"]  # fixtures of others

RESULT = {
    "columns": [{"name": "n", "type": "bigint"}, {"name": "b", "type": "binary"}],
    "rows": [[1, "b24="], [None, "/wA="], [True, "G1szMW0="]],
}


class PreparedResults:
    """In the place of Spark: each query gives the same three rows, of which two are shown."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "part-0.parquet"
        table = pa.table({"c0": [1, 2, 3], "c1": ['{"k":1}', None, "3"]})
        pq.write_table(table, self._path)
        self.asked: list[tuple[str, Format, QueryLimits]] = []
        self.ended = 0

    @contextmanager
    def run(
        self,
        query: CheckedQuery,
        form: Format,
        limits: QueryLimits,
        _stop: Callable[[], bool],
        *,
        caller: str,
    ) -> Iterator[Result]:
        assert caller == "api-token"
        self.asked.append((query.text, form, limits))
        columns = (ResultColumn("n", "int", False), ResultColumn("v", "variant", True))
        try:
            yield Result(columns, (self._path,), 2, is_truncated=True)
        finally:
            self.ended += 1


@pytest.fixture
def results(served: Api, tmp_path: Path) -> PreparedResults:
    prepared = PreparedResults(tmp_path)
    served.put_in("queries", runner=prepared)
    return prepared


def run(served: Api, *arguments: str) -> tuple[bytes, str]:
    command = ["sql", "--data-dir", str(served.data_dir), *arguments]
    done = CliRunner().invoke(mqlake, command)
    if done.exception is not None:
        raise done.exception
    return done.stdout_bytes, done.stderr


def test_each_form_is_written_as_it_comes(
    served: Api, results: PreparedResults, tmp_path: Path
) -> None:
    query = "SELECT * FROM messages"
    shown, note = run(served, query, "--format", "csv")
    assert shown == b'n,v\r\n1,"{""k"":1}"\r\n2,\r\n'
    assert note.startswith("first 2 rows")
    shown, _ = run(served, query, "--format", "json", "--limit", "7", "--timeout", "9")
    assert json.loads(shown) == [{"n": 1, "v": {"k": 1}}, {"n": 2, "v": None}]
    shown, _ = run(served, query)
    assert '1   {"k": 1}' in shown.decode()
    path = tmp_path / "x.parquet"
    assert run(served, query, "--format", "parquet", "-o", str(path))[0] == b""
    assert pq.read_table(path).to_pydict() == {"n": [1, 2], "v": ['{"k":1}', None]}
    assert [(form, limits.rows, limits.seconds) for _, form, limits in results.asked] == [
        ("csv", 1_000_000, 300.0),
        ("jsonl", 7, 9.0),
        ("json", 100, 300.0),
        ("parquet", 1_000_000, 300.0),
    ]
    assert results.ended == 4


def test_the_last_line_says_up_to_when_the_tables_are_complete(
    served: Api, results: PreparedResults
) -> None:
    query = ("SELECT * FROM messages", "--format", "csv")
    assert run(served, *query)[1].splitlines() == [
        "first 2 rows; --limit 0 gives as many as may be",
        "it is not known up to when they are complete",
    ]
    say_complete(served.data_dir, history=1_700_000_000_123)
    for form in ("table", "json", "csv"):
        note = run(served, query[0], "--format", form)[1]
        assert note.splitlines()[-1] == "complete until 2023-11-14T22:13:20.123Z"


def test_what_is_wrong_has_its_place(served: Api) -> None:
    missing = r"no table secrets \(line 2, column 6\): did you mean"
    with pytest.raises(OperationalError, match=missing):
        run(served, "SELECT 1\nFROM secrets")


def test_a_table_shows_binary_text_as_text_and_no_control_characters() -> None:
    text = _to_table(RESULT, is_terminal=False).decode()
    assert "on" in text
    assert "ff00" in text
    assert "\\x1b[31m" in text
    assert "\x1b" not in text


def test_lines_become_one_array() -> None:
    lines = b'{"a": 1}\n{"a": 2}\n'
    assert json.loads(b"".join(_to_array(io.BytesIO(lines)))) == [{"a": 1}, {"a": 2}]
    assert json.loads(b"".join(_to_array(io.BytesIO(b"")))) == []
