"""Uploads: what they become, and what is said of those that cannot be used."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.references.reading import UploadError, read_schema, read_upload
from mqlake.records.references import Columns


def csv(text: str, **more: Any) -> tuple[Columns, list[tuple[Any, ...]]]:
    upload = read_upload(text.encode(), "csv", **more)
    return upload.columns, upload.rows


def js(text: str, **more: Any) -> tuple[Columns, list[tuple[Any, ...]]]:
    upload = read_upload(text.encode(), "json", **more)
    return upload.columns, upload.rows


def test_types_of_a_csv_are_those_of_its_cells() -> None:
    text = "id,limit,ok,zip,note\nm1,7,true,01234,\nm2,7.5,FALSE,99999,x\nm3,,,,\n"

    assert csv(text) == (
        (
            ("id", "STRING"),
            ("limit", "DOUBLE"),
            ("ok", "BOOLEAN"),
            ("zip", "STRING"),
            ("note", "STRING"),
        ),
        [
            ("m1", 7.0, True, "01234", None),
            ("m2", 7.5, False, "99999", "x"),
            ("m3", None, None, None, None),
        ],
    )


def test_a_csv_may_have_a_mark_quotes_line_ends_and_another_delimiter() -> None:
    text = '\ufeffid;note\r\n1;"a;""b""\r\nc"\r\n\r\n2;d\r\n'

    assert csv(text, delimiter=";") == (
        (("id", "BIGINT"), ("note", "STRING")),
        [(1, 'a;"b"\r\nc'), (2, "d")],
    )


@pytest.mark.parametrize(
    "text",
    [
        '[{"id": 1, "x": 2.5}, {"x": 3, "id": 2, "new": "n"}]',
        '{"id": 1, "x": 2.5}\n\n  {"x": 3, "id": 2, "new": "n"}  \n',
    ],
)
def test_json_comes_as_an_array_or_in_lines(text: str) -> None:
    assert js(text) == (
        (("id", "BIGINT"), ("x", "DOUBLE"), ("new", "STRING")),
        [(1, 2.5, None), (2, 3.0, "n")],
    )


def test_a_schema_decides_on_types_and_order() -> None:
    schema = read_schema("n STRING, id int,d double")

    assert js('[{"id": 1.0, "d": 3, "n": {"a": [1, "ü"]}}]', schema=schema) == (
        (("n", "STRING"), ("id", "BIGINT"), ("d", "DOUBLE")),
        [('{"a": [1, "ü"]}', 1, 3.0)],
    )
    assert csv("id,d,n\n007,1e3,5\n", schema=schema)[1] == [("5", 7, 1000.0)]


CSV_ERRORS = {
    "": "it is empty",
    "a,b\n1\n": "line 2: there are 1 cells, expected 2",
    'a\n"x\ny"z\n': "line 2: it is no CSV",
    'a\n1\n"x\n': "line 3: it is no CSV",
    "a,a\n": "column 'a': two columns have this name",
    "a,A\n": "column 'A': two columns have this name",
    "a,2\n": "a column cannot be called '2'",
    "a,b c\n": "a column cannot be called 'b c'",
    "a\n1\n2\n1\n": "line 4: the key 1 is that of line 2 too",
    "a,b\n,1\n": "line 2, column 'a': it is part of the key and has no value",
    "a\nx\0y\n": "line 2: it holds a zero byte",
}


@pytest.mark.parametrize("text", CSV_ERRORS)
def test_what_is_wrong_in_a_csv_is_said_with_its_place(text: str) -> None:
    with pytest.raises(UploadError) as refused:
        csv(text)

    assert CSV_ERRORS[text] in str(refused.value)


JSON_ERRORS = {
    "": "there are no rows",
    "[]": "there are no rows",
    "[{}]": "there are no columns",
    "{}\n{}": "there are no columns",
    "[1]": "line 1: 1 is no object",
    '[{"a": 1},\n {"a": 2}': "line 2: expected a comma or the end of the array",
    '[{"a": 1},': "line 1: the array has no end",
    '[{"a": 1}\n\n {"a": 2}]': "line 3: expected a comma",
    '[{"a": 1}] x': "line 1: something stands behind the array",
    '{"a": 1} {"a": 2}': "line 1: expected one object a line",
    '{"a": 1}\n{"a": x}': "line 2: it is no JSON",
    '{"a": 1, "a": 2}': "line 1: an object has 'a' twice",
    '{"a": NaN}': "NaN is no JSON",
    '{"a": 1}\n{"a": "x"}': "line 2, column 'a': it is STRING here and BIGINT in line 1",
    '{"a": 1}\n{"a": 2, "b": [1]}': "line 2, column 'b': objects and arrays are no values",
    '{"a": "\\ud800"}': "line 1, column 'a': half a character",
    '{"a": 1e999}': "line 1, column 'a': Infinity is no DOUBLE",
    '{"a": ' + "[" * 100_000: "line 1: it is nested too deeply",
    '{"a": ' + "9" * 5_000 + "}": "line 1:",
    '{"a": "' + "x" * 70_000 + '"}': "line 1, column 'a': a text has 70,000 characters",
}


@pytest.mark.parametrize("text", JSON_ERRORS, ids=lambda text: text[:20])
def test_what_is_wrong_in_json_is_said_with_its_place(text: str) -> None:
    with pytest.raises(UploadError) as refused:
        js(text)

    assert JSON_ERRORS[text] in str(refused.value)


def test_values_that_are_not_of_the_schema_are_refused() -> None:
    schema = read_schema("id STRING, n BIGINT")

    with pytest.raises(UploadError, match=r"line 3, column 'n': '1_0' is no BIGINT"):
        csv("id,n\na,1\nb,1_0\n", schema=schema)
    with pytest.raises(UploadError, match=r"line 1, column 'n': 1.5 is no BIGINT"):
        js('{"id": "a", "n": 1.5}', schema=schema)
    with pytest.raises(UploadError, match=r"column 'x': the schema has no such column"):
        csv("id,n,x\n", schema=schema)
    with pytest.raises(UploadError, match=r"column 'n': there is no such column"):
        csv("id\n", schema=schema)


@pytest.mark.parametrize(
    "text", ["", "id", "id UUID", "id STRING,", "a b STRING", "id STRING, ID INT"]
)
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UploadError):
        read_schema(text)


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(UploadError, match="line 2: it is not UTF-8"):
        read_upload(b"a\n\xff\n", "csv")


def test_there_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.references.reading.MAX_ROWS", 2)
    with pytest.raises(UploadError, match="more than 2 rows"):
        csv("a\n1\n2\n3\n")
    with pytest.raises(UploadError, match="more than 2 rows"):
        js('{"a":1}\n{"a":2}\n{"a":3}')
    with pytest.raises(UploadError, match="101 columns"):
        csv(",".join(f"c{n}" for n in range(101)))


@given(st.lists(st.fixed_dictionaries({"s": st.text(max_size=5) | st.none()}), min_size=1))
def test_what_is_handed_over_is_what_was_read(rows: list[dict[str, Any]]) -> None:
    """Each line is one JSON object with all columns, whatever line ends its texts hold."""
    given_rows = [{"id": number, **row} for number, row in enumerate(rows)]

    upload = read_upload(json.dumps(given_rows).encode(), "json")

    lines = b"".join(upload.lines()).split(b"\n")
    assert lines.pop() == b""
    assert [json.loads(line) for line in lines] == given_rows


@given(st.binary(max_size=60), st.sampled_from(["csv", "json"]))
def test_any_bytes_are_rows_or_an_error(data: bytes, format_: Any) -> None:
    try:
        upload = read_upload(data, format_)
    except UploadError:
        return
    assert all(len(row) == len(upload.columns) for row in upload.rows)
