"""Results in the forms in which they are sent."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.sql.results import Format, Result, ResultColumn, write


def cell(tmp_path: Path, value: object, name: str = "a") -> str:
    """Return a value as a CSV has it."""
    file = tmp_path / "part.parquet"
    pq.write_table(pa.table({name: [value]}), file)
    column = ResultColumn(name, "string", is_json=False)
    text = b"".join(write(Result((column,), (file,), 1, is_truncated=False), "csv")).decode()
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


def sent(tmp_path: Path, form: Format, values: pa.Array) -> str:
    """Return a column as an answer in one of the forms."""
    file = tmp_path / "part.parquet"
    pq.write_table(pa.table({"a": values}), file)
    column = ResultColumn("a", str(values.type), is_json=False)
    result = Result((column,), (file,), len(values), is_truncated=False)
    return b"".join(write(result, form)).decode()


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_doubles_that_json_has_not_are_texts_as_in_nested_values(tmp_path: Path) -> None:
    doubles = pa.array([float("nan"), float("inf"), float("-inf"), 1.5, None])
    wanted = ["NaN", "Infinity", "-Infinity", 1.5, None]
    whole = json.loads(sent(tmp_path, "json", doubles), parse_constant=refuse)
    assert whole["rows"] == [[one] for one in wanted]
    lines = sent(tmp_path, "jsonl", doubles).splitlines()
    assert [json.loads(line, parse_constant=refuse)["a"] for line in lines] == wanted
    assert sent(tmp_path, "csv", doubles).split()[1:4] == ["NaN", "Infinity", "-Infinity"]


def test_years_that_python_has_not_are_in_the_answer(tmp_path: Path) -> None:
    times = pa.array([568971820800_000_000, None, 500], type=pa.timestamp("us", "UTC"))
    rows = json.loads(sent(tmp_path, "json", times))["rows"]
    assert rows == [["20000-01-01T00:00:00.000Z"], [None], ["1970-01-01T00:00:00.000500Z"]]
    days = pa.array([-800_000, 10_000_000], type=pa.date32())
    assert json.loads(sent(tmp_path, "json", days))["rows"] == [["-0221-09-04"], ["29349-01-26"]]
