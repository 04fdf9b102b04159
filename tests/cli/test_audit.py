"""`mqlake audit` against the application behind a real server; in the place of Spark are answers.

What Spark answers is in `tests/streaming/test_audit.py`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from api.relations.audits import AUDITS, COLUMNS
from api.sql.checking import CheckedQuery
from api.sql.results import Format, Result, ResultColumn
from api.sql.running import QueryLimits
from cli.app import mqlake
from mqlake.errors import OperationalError
from tests.api.conftest import Api, api
from tests.mqlake.test_api_client import served

__all__ = ["api", "served"]  # fixtures of others

Row = tuple[str, str, int, int, int, str | None, str | None]

WITNESS = {"topic": "t", "kind": "\x1b[31m"}
HOLDS: Row = ("default", "lost", 1_000, 0, 2, None, None)
BREAKS: Row = ("default", "retained", 5, 1, 0, "2026-01-05T12:00:00", json.dumps(WITNESS))
TYPES = (*(pa.string(),) * 2, *(pa.int64(),) * 3, *(pa.string(),) * 2)


class Answers:
    """Gives these rows to each query."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "part-0.parquet"
        self.rows = [HOLDS]
        self.asked: list[str] = []

    @contextmanager
    def run(
        self,
        query: CheckedQuery,
        _form: Format,
        _limits: QueryLimits,
        _stop: Callable[[], bool],
        *,
        caller: str,
    ) -> Iterator[Result]:
        assert caller == "api-token"
        self.asked.append(query.text)
        columns = list(zip(*self.rows, strict=True))
        arrays = [pa.array(column, kind) for column, kind in zip(columns, TYPES, strict=True)]
        names = [f"c{number}" for number in range(len(COLUMNS))]
        pq.write_table(pa.Table.from_arrays(arrays, names), self._path)
        shown = tuple(
            ResultColumn(name, "bigint" if kind == pa.int64() else "string", False)
            for name, kind in zip(COLUMNS, TYPES, strict=True)
        )
        yield Result(shown, (self._path,), len(self.rows), is_truncated=False)


@pytest.fixture
def answers(served: Api, tmp_path: Path) -> Answers:
    prepared = Answers(tmp_path)
    served.put_in("queries", runner=prepared)
    return prepared


def run(served: Api, *arguments: str) -> tuple[str, BaseException | None]:
    done = CliRunner().invoke(mqlake, ["audit", "--data-dir", str(served.data_dir), *arguments])
    return done.stdout, done.exception


def test_every_audit_is_told_with_and_without_cases(served: Api, answers: Answers) -> None:
    shown, error = run(served, "--since", "2026-01-05")
    assert error is None
    lines = shown.splitlines()
    assert lines[0] == "since 2026-01-05 00:00:00 UTC"
    assert [line.split()[0] for line in lines[2:]] == [audit.name for audit in AUDITS]
    assert lines[2].split()[:4] == ["lost", "1000", "0", "2"]
    assert "TIMESTAMP '2026-01-05 00:00:00'" in answers.asked[0]


def test_a_broken_promise_is_shown_and_fails(served: Api, answers: Answers) -> None:
    answers.rows = [HOLDS, BREAKS]
    shown, error = run(served)
    assert isinstance(error, OperationalError)
    assert str(error) == "promises broken: retained"
    assert '"topic": "t"' in shown.splitlines()[-1]
    assert "\x1b" not in shown
    shown, error = run(served, "--json")
    assert isinstance(error, OperationalError)
    row = next(row for row in json.loads(shown) if row["audit"] == "retained")
    assert (row["checked"], row["broken"], row["witness"]) == (5, 1, WITNESS)


def test_metrics_are_written_for_an_alert(served: Api, answers: Answers, tmp_path: Path) -> None:
    answers.rows = [HOLDS, BREAKS]
    path = tmp_path / "mqlake.prom"
    run(served, "--textfile", str(path))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert 'mqlake_audit_broken{audit="retained",tenant="default"} 1.0' in lines
    assert 'mqlake_audit_unknown{audit="lost",tenant="default"} 2.0' in lines
    assert any(line.startswith("mqlake_audit_ended_timestamp_seconds{") for line in lines)
