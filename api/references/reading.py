"""Read an upload: CSV or JSON to rows of typed columns, or an error with its place.

Types are those of the values unless a schema is given. A CSV cell that is empty is null, so is a
field that is missing in JSON. A number that begins with a zero, a postal code say, is text.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final, Literal, NamedTuple

from mqlake.errors import MqlakeError
from mqlake.records.references import COLUMN_TYPES, Columns, ColumnType
from rules.references import MAX_COLUMNS, MAX_ROWS, MAX_TEXT_CHARACTERS, is_column_name

Format = Literal["csv", "json"]
Value = str | int | float | bool | None

_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# A number, where the schema says that it is one.
_LOOSE_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_LOOSE_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1
_BOOLEANS: Final = {"true": True, "false": False}
_SPACE: Final = " \t\n\r"
_SHOWN_CHARACTERS: Final = 40
_SYNONYMS: Final[dict[str, ColumnType]] = {
    **{type_: type_ for type_ in COLUMN_TYPES},
    "TEXT": "STRING",
    "INT": "BIGINT",
    "INTEGER": "BIGINT",
    "LONG": "BIGINT",
    "FLOAT": "DOUBLE",
    "BOOL": "BOOLEAN",
}


class UploadError(MqlakeError):
    """An upload cannot be used.

    Attributes:
        line: 1-based, in the upload; None for a problem without a place there.
        column: Name of the column, if it is about one.
    """

    def __init__(self, problem: str, *, line: int | None = None, column: str | None = None) -> None:
        place = [] if line is None else [f"line {line}"]
        place += [] if column is None else [f"column {column!r}"]
        super().__init__(f"{', '.join(place)}: {problem}" if place else problem)
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Upload:
    """Rows that have been read; each has a value for each column."""

    columns: Columns
    key: tuple[str, ...]
    rows: list[tuple[Value, ...]]

    def lines(self) -> Iterator[bytes]:
        """Yield the rows as the lake reads them, a JSON object a line."""
        names = [name for name, _ in self.columns]
        for row in self.rows:
            fields = dict(zip(names, row, strict=True))
            yield json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class _Row(NamedTuple):
    line: int
    values: Sequence[Any]


class _Raw(NamedTuple):
    names: list[str]
    rows: list[_Row]


def read_upload(
    data: bytes,
    format_: Format,
    *,
    schema: Columns | None = None,
    key: Sequence[str] | None = None,
    delimiter: str = ",",
) -> Upload:
    """Read rows.

    Args:
        data: UTF-8; a byte order mark is taken off.
        format_: `csv`: the first line has the names. `json`: an array of objects, or one a line.
        schema: The columns; None: those that are there, with the types of their values.
        key: Columns that tell rows apart; None: the first one.
        delimiter: Between the cells of a CSV line.

    Raises:
        UploadError: It cannot be read, or breaks a limit.
    """
    text = _text(data)
    raw = _read_csv(text, delimiter) if format_ == "csv" else _read_json(text)
    names = _checked(raw.names) if schema is None else _checked([name for name, _ in schema])
    _check_same(names, raw.names)
    given = {} if schema is None else dict(schema)
    columns: list[list[Value]] = []
    types: list[ColumnType] = []
    for name in names:
        at = raw.names.index(name)
        cells = [(row.line, row.values[at]) for row in raw.rows]
        infer = _csv_type if format_ == "csv" else _json_type
        type_ = given.get(name) or infer(name, cells)
        convert = _CSV_VALUES[type_] if format_ == "csv" else _JSON_VALUES[type_]
        columns.append([_converted(name, type_, line, cell, convert) for line, cell in cells])
        types.append(type_)
    rows: list[tuple[Value, ...]] = list(zip(*columns, strict=True))
    keys = _checked_key(names, key)
    _check_keys(names, keys, raw.rows, rows)
    return Upload(tuple(zip(names, types, strict=True)), keys, rows)


def _check_same(names: Sequence[str], there: Sequence[str]) -> None:
    """Refuse columns that the schema or the rows alone have."""
    missing = [name for name in names if name not in there]
    if missing:
        raise UploadError(f"there is no such column: {', '.join(missing)}", column=missing[0])
    unknown = [name for name in there if name not in names]
    if unknown:
        raise UploadError("the schema has no such column", column=unknown[0])


def read_schema(text: str) -> Columns:
    """Read columns as `name TYPE, name TYPE`.

    Raises:
        UploadError: They are written otherwise, or have other types.
    """
    columns: list[tuple[str, ColumnType]] = []
    for one in text.split(","):
        name, _, type_ = one.strip().partition(" ")
        known = _SYNONYMS.get(type_.strip().upper())
        if known is None:
            raise UploadError(
                f"the schema has {one.strip()!r}, expected a name and one of "
                f"{', '.join(COLUMN_TYPES)}"
            )
        columns.append((name, known))
    _checked([name for name, _ in columns])
    return tuple(columns)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise UploadError(f"it is not UTF-8 (byte {exc.start})", line=line) from exc


def _checked(names: list[str]) -> list[str]:
    if not names:
        raise UploadError("there are no columns; give objects with members")
    if len(names) > MAX_COLUMNS:
        raise UploadError(f"there are {len(names)} columns, at most {MAX_COLUMNS} are allowed")
    seen: set[str] = set()
    for name in names:
        if not is_column_name(name):
            raise UploadError(
                f"a column cannot be called {_shown(name)}: letters, digits and _, at most 63, "
                "no digit at the beginning"
            )
        if name.lower() in seen:
            raise UploadError("two columns have this name (without regard to case)", column=name)
        seen.add(name.lower())
    return names


def _checked_key(names: list[str], key: Sequence[str] | None) -> tuple[str, ...]:
    if key is None:
        return (names[0],)
    for name in key:
        if name not in names:
            raise UploadError(f"the key names it, there are: {', '.join(names)}", column=name)
        if list(key).count(name) > 1:
            raise UploadError("the key names it twice", column=name)
    if not key:
        raise UploadError("the key names no column")
    return tuple(key)


def _check_keys(
    names: list[str], key: tuple[str, ...], raw: list[_Row], rows: list[tuple[Value, ...]]
) -> None:
    places = [names.index(name) for name in key]
    lines: dict[tuple[Value, ...], int] = {}
    for (line, _), row in zip(raw, rows, strict=True):
        found = tuple(row[place] for place in places)
        for name, value in zip(key, found, strict=True):
            if value is None:
                raise UploadError("it is part of the key and has no value", line=line, column=name)
        if found in lines:
            shown = ", ".join(_shown(value) for value in found)
            raise UploadError(f"the key {shown} is that of line {lines[found]} too", line=line)
        lines[found] = line


def _read_csv(text: str, delimiter: str) -> _Raw:
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UploadError("it holds a zero byte", line=line)
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    rows: list[_Row] = []
    end = 0
    try:
        for cells in reader:
            line, end = end + 1, reader.line_num  # a cell in quotes may go over several lines
            if not cells:
                continue
            if names is None:
                names = [cell.strip() for cell in cells]
            elif len(cells) != len(names):
                raise UploadError(
                    f"there are {len(cells)} cells, expected {len(names)} as in the first line",
                    line=line,
                )
            else:
                rows.append(_Row(line, cells))
                _check_count(rows)
    except csv.Error as exc:
        raise UploadError(f"it is no CSV: {exc}", line=end + 1) from exc
    if names is None:
        raise UploadError("it is empty: the first line of a CSV has the names of the columns")
    return _Raw(names, rows)


def _read_json(text: str) -> _Raw:
    objects: list[tuple[int, dict[str, Any]]] = []
    names: dict[str, None] = {}
    for line, value in _json_values(text):
        if not isinstance(value, dict):
            raise UploadError(f"{_shown(value)} is no object", line=line)
        objects.append((line, value))
        _check_count(objects)
        names.update(dict.fromkeys(value))
        if len(names) > MAX_COLUMNS:
            raise UploadError(f"there are more than {MAX_COLUMNS} columns", line=line)
    if not objects:
        raise UploadError("there are no rows; give objects, in an array or one a line")
    order = list(names)
    rows = [_Row(line, [found.get(name) for name in order]) for line, found in objects]
    return _Raw(order, rows)


def _json_values(text: str) -> Iterator[tuple[int, Any]]:
    """Yield the elements of an array, or the values that stand one behind another, with lines."""
    decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant)
    at = _skip(text, 0)
    is_array = text[at : at + 1] == "["
    if is_array:
        at = _skip(text, at + 1)
        if text[at : at + 1] == "]":
            return
    line, counted = 1, 0
    while at < len(text):
        line += text.count("\n", counted, at)
        counted = at
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as exc:
            problem = f"it is no JSON: {exc.msg} (character {exc.colno})"
            raise UploadError(problem, line=exc.lineno) from exc
        except RecursionError as exc:
            raise UploadError("it is nested too deeply", line=line) from exc
        except ValueError as exc:  # a hook's, or a number with thousands of digits
            raise UploadError(str(exc), line=line) from exc
        yield line, value
        end = at
        at = _skip(text, at)
        if is_array:
            separator = text[at : at + 1]
            if separator == "]":
                if _skip(text, at + 1) < len(text):
                    raise UploadError("something stands behind the array", line=line)
                return
            if separator != ",":
                here = line + text.count("\n", counted, at)
                raise UploadError("expected a comma or the end of the array", line=here)
            at = _skip(text, at + 1)
        elif at < len(text) and "\n" not in text[end:at]:
            raise UploadError("expected one object a line, or an array", line=line)
    if is_array:
        raise UploadError("the array has no end", line=text.count("\n") + 1)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {_shown(twice)} twice")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _check_count(rows: Sequence[Any]) -> None:
    if len(rows) > MAX_ROWS:
        raise UploadError(f"there are more than {MAX_ROWS:,} rows")


def _csv_type(_name: str, cells: list[tuple[int, Any]]) -> ColumnType:
    found = [cell for _, cell in cells if cell != ""]
    if not found:
        return "STRING"
    if all(_INTEGER.fullmatch(cell) and _LEAST <= int(cell) <= _MOST for cell in found):
        return "BIGINT"
    if all(_NUMBER.fullmatch(cell) and math.isfinite(float(cell)) for cell in found):
        return "DOUBLE"
    if all(cell.lower() in _BOOLEANS for cell in found):
        return "BOOLEAN"
    return "STRING"


def _json_type(name: str, cells: list[tuple[int, Any]]) -> ColumnType:
    found: dict[ColumnType, int] = {}
    for line, cell in cells:
        if cell is None:
            continue
        if isinstance(cell, dict | list):
            raise UploadError(
                "objects and arrays are no values; a schema with STRING takes them as JSON text",
                line=line,
                column=name,
            )
        found.setdefault(_type_of(cell), line)
    if found.keys() == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    if len(found) > 1:
        (one, first), (other, second) = sorted(found.items(), key=lambda item: item[1])[:2]
        raise UploadError(
            f"it is {other} here and {one} in line {first}; a schema with STRING takes both",
            line=second,
            column=name,
        )
    return next(iter(found), "STRING")


def _type_of(value: Any) -> ColumnType:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if _LEAST <= value <= _MOST else "DOUBLE"
    return "DOUBLE" if isinstance(value, float) else "STRING"


def _converted(
    name: str, type_: ColumnType, line: int, cell: Any, convert: Callable[[Any], Value]
) -> Value:
    if cell is None:
        return None
    try:
        value = convert(cell)
    except (ValueError, OverflowError):
        raise UploadError(f"{_shown(cell)} is no {type_}", line=line, column=name) from None
    if isinstance(value, str):
        if len(value) > MAX_TEXT_CHARACTERS:
            raise UploadError(
                f"a text has {len(value):,} characters, at most {MAX_TEXT_CHARACTERS:,} may be",
                line=line,
                column=name,
            )
        if any("\ud800" <= one <= "\udfff" for one in value):
            raise UploadError("half a character (a lone surrogate)", line=line, column=name)
    return value


def _bigint_of_text(cell: str) -> Value:
    if cell == "":
        return None
    if not _LOOSE_INTEGER.fullmatch(cell.strip()) or not _LEAST <= int(cell) <= _MOST:
        raise ValueError
    return int(cell)


def _double_of_text(cell: str) -> Value:
    if cell == "":
        return None
    if not _LOOSE_NUMBER.fullmatch(cell.strip()):
        raise ValueError
    return _finite(float(cell))


def _boolean_of_text(cell: str) -> Value:
    if cell == "":
        return None
    if cell.lower() not in _BOOLEANS:
        raise ValueError
    return _BOOLEANS[cell.lower()]


def _bigint(cell: Any) -> Value:
    whole = isinstance(cell, float) and cell.is_integer()
    if isinstance(cell, bool) or not (isinstance(cell, int) or whole):
        raise ValueError
    if not _LEAST <= cell <= _MOST:
        raise ValueError
    return int(cell)


def _double(cell: Any) -> Value:
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        raise ValueError
    return _finite(float(cell))


def _boolean(cell: Any) -> Value:
    if not isinstance(cell, bool):
        raise ValueError
    return cell


def _string(cell: Any) -> Value:
    return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError
    return value


_CSV_VALUES: Final[dict[ColumnType, Callable[[Any], Value]]] = {
    "STRING": lambda cell: cell or None,
    "BIGINT": _bigint_of_text,
    "DOUBLE": _double_of_text,
    "BOOLEAN": _boolean_of_text,
}
_JSON_VALUES: Final[dict[ColumnType, Callable[[Any], Value]]] = {
    "STRING": _string,
    "BIGINT": _bigint,
    "DOUBLE": _double,
    "BOOLEAN": _boolean,
}


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else _brief(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return json.dumps(value)
