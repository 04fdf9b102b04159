"""Results in the forms in which they are sent."""

import csv
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.sql.results import Result, ResultColumn, _csv


def cell(tmp_path: Path, value: object, name: str = "a") -> str:
    """Return a value as a CSV has it."""
    file = tmp_path / "part.parquet"
    pq.write_table(pa.table({name: [value]}), file)
    column = ResultColumn(name, "string", is_json=False)
    text = b"".join(_csv(Result((column,), (file,), 1, is_truncated=False))).decode()
    header, (found,) = csv.reader(io.StringIO(text, newline=""))
    assert header == [name]
    return found


@pytest.mark.parametrize(
    "text",
    [
        *(
            "=cmd|' /C calc'!A0",
            "=1+1",
            "@SUM(A1)",
            "+cmd|x",
            "-cmd|x",
            "\t=1",
            "\r=1",
            "=",
            "+",
            "-",
        ),
        *("-2+3+cmd|x", "+A1", "--1x", "=", "+", "-"),
    ],
)
def test_nothing_a_client_writes_is_a_formula(tmp_path: Path, text: str) -> None:
    assert cell(tmp_path, text) == f"'{text}"


@pytest.mark.parametrize("text", ["21.5", "-21.5", "+1e-3", "-.5", "a=b", "", "plant/1", "'x", "é"])
def test_other_texts_are_as_they_are(tmp_path: Path, text: str) -> None:
    assert cell(tmp_path, text) == text


def test_numbers_and_bytes_are_as_they_are(tmp_path: Path) -> None:
    assert cell(tmp_path, -5) == "-5"
    assert cell(tmp_path, b"\xf8\x00\x00") == "+AAA"
