"""Expressions of the language in Spark SQL: their kind, their text, and their conversions.

A field of the payload has no type until a message comes: it is of kind `JSON`, a VARIANT, and the
place where it is used asks for the type that it needs (`as_text`, `as_double`, …). None of these
conversions fails: a value without such a form is NULL. `operand`, for arithmetic, is the exception.
"""

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from rules.language.numerals import INFINITY, is_finite, number_in
from rules.sql.quoting import is_expressible, quoted, variant_path


class ValueKind(Enum):
    """Kinds of values, as far as they are known before a message comes."""

    JSON = "a field"
    TEXT = "text"
    BINARY = "bytes"
    INTEGER = "an integer"
    DOUBLE = "a number"
    NUMBER = "a result of arithmetic"
    """Integer where everything in it is an integer and 64 bits are enough, else a double."""
    BOOLEAN = "a condition"
    ARRAY = "an array"
    NULL = "null"


NUMERIC: Final = frozenset({ValueKind.INTEGER, ValueKind.DOUBLE, ValueKind.NUMBER})
TEXTUAL: Final = frozenset({ValueKind.TEXT, ValueKind.BINARY})
EXACT_IN_DOUBLE: Final = 2**53

Segment: TypeAlias = "str | int | tuple[int, int]"
"""Segment of a path: a field, an element, or the elements of a range."""


@dataclass(frozen=True, slots=True)
class Value:
    """An expression in Spark SQL.

    Attributes:
        kind: Kind of its value.
        sql: Its text, closed in itself: usable beside any operator. Of a `NUMBER` the double.
        exact: BIGINT of a `NUMBER`, NULL if it is none.
        path: Path of a `JSON` into `sql`, a VARIANT.
        literal: The value of a constant, in Python.
        name: How the rule calls it, for error messages.
    """

    kind: ValueKind
    sql: str
    exact: str = ""
    path: tuple[str | int, ...] = ()
    literal: Any = field(default=None)
    name: str = ""

    @property
    def variant(self) -> str:
        """A `JSON` as VARIANT."""
        return f"variant_get({self.sql}, {variant_path(self.path)})" if self.path else self.sql

    def get(self, spark_type: str) -> str:
        """A `JSON` as a Spark type, NULL where it has no such form."""
        return f"try_variant_get({self.sql}, {variant_path(self.path)}, '{spark_type}')"

    @property
    def json_type(self) -> str:
        """A `JSON`'s type at run time, as text: `BIGINT`, `STRING`, `DECIMAL(3,1)`, `OBJECT<…>`."""
        return f"schema_of_variant({self.variant})"


def integer(sql: str) -> Value:
    return Value(ValueKind.INTEGER, sql)


def double(sql: str) -> Value:
    return Value(ValueKind.DOUBLE, sql)


def text(sql: str) -> Value:
    return Value(ValueKind.TEXT, sql)


def boolean(sql: str) -> Value:
    return Value(ValueKind.BOOLEAN, sql)


def json(sql: str, path: tuple[str | int, ...] = (), name: str = "") -> Value:
    return Value(ValueKind.JSON, sql, path=path, name=name)


NULL: Final = Value(ValueKind.NULL, "NULL")


def constant(value: Any) -> Value:
    """Return a constant of the language."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return Value(ValueKind.BOOLEAN, "true" if value else "false", literal=value)
    if isinstance(value, str):
        return Value(ValueKind.TEXT, quoted(value), literal=value)
    if isinstance(value, int):
        if -(2**63) < value < 2**63:
            sql = f"{value}L" if value >= 0 else f"(- {-value}L)"
            return Value(ValueKind.INTEGER, sql, literal=value)
        value = float(value)
    sql = f"{abs(value)!r}D"
    return Value(
        ValueKind.DOUBLE, sql if math.copysign(1, value) > 0 else f"(- {sql})", literal=value
    )


def shown_segment(segment: Segment) -> str:
    """Return a part of a path as rules write it."""
    if isinstance(segment, tuple):
        return f"[{segment[0]}..{segment[1]}]"
    return f"[{segment}]" if isinstance(segment, int) else f".{segment}"


def field_of(value: Value, key: Segment) -> Value:
    """Take a field, an element or a range (from 1, or from the end below 0) out of a value."""
    name = value.name + shown_segment(key)
    if isinstance(key, tuple):
        return Value(ValueKind.ARRAY, _range(as_array(value), *key), name=name)
    if value.kind is not ValueKind.JSON:
        value = json(as_parsed(value), name=value.name)
    if isinstance(key, int):
        if key > 0:
            return json(value.sql, (*value.path, key - 1), name)
        return json(f"try_element_at({value.get('array<variant>')}, {key})", name=name)
    if is_expressible(key):
        return json(value.sql, (*value.path, key), name)
    return json(f"try_element_at({value.get('map<string,variant>')}, {quoted(key)})", name=name)


def _range(array: str, first: int, last: int) -> str:
    if first > 0 and last > 0:
        return f"slice({array}, {first}, {max(last - first + 1, 0)})"
    low, high = (
        f"{place - 1}" if place > 0 else f"size({array}) - {-place}" for place in (first, last)
    )
    return f"filter({array}, (e, i) -> i >= {low} AND i <= {high})"


def as_text(value: Value) -> str:
    """STRING: numbers and booleans as JSON writes them, objects and arrays as JSON."""
    if value.kind is ValueKind.JSON:
        return value.get("string")
    if value.kind is ValueKind.TEXT:
        return value.sql
    if value.kind is ValueKind.NUMBER:
        return f"coalesce(CAST({value.exact} AS STRING), CAST({value.sql} AS STRING))"
    if value.kind is ValueKind.ARRAY:
        return f"to_json({value.sql}, map('ignoreNullFields', 'false'))"
    if value.kind is ValueKind.DOUBLE:
        return f"CAST({as_finite(value)} AS STRING)"
    return f"CAST({value.sql} AS STRING)"


def as_bytes(value: Value) -> str:
    """BINARY: bytes as they are, everything else as the UTF-8 of its text."""
    return value.sql if value.kind is ValueKind.BINARY else f"CAST({as_text(value)} AS BINARY)"


def as_double(value: Value) -> str:
    """DOUBLE: of numbers and of text that is one, see `numerals`; infinite above 1.8e308."""
    if value.kind is ValueKind.JSON or value.kind in TEXTUAL:
        return f"try_cast({number_in(as_text(value))} AS DOUBLE)"
    if value.kind is ValueKind.INTEGER:
        if value.literal is not None:
            return constant(float(value.literal)).sql
        return f"CAST({value.sql} AS DOUBLE)"
    if value.kind is ValueKind.NUMBER:
        return f"coalesce(CAST({value.exact} AS DOUBLE), {value.sql})"
    return value.sql if value.kind is ValueKind.DOUBLE else "CAST(NULL AS DOUBLE)"


def as_integer(value: Value) -> str:
    """BIGINT: of numbers and of text that is one, cut towards zero."""
    if value.kind is ValueKind.JSON or value.kind in TEXTUAL:
        decimal = f"try_cast({number_in(as_text(value))} AS DECIMAL(38,18))"
        return f"try_cast({decimal} AS BIGINT)"
    if value.kind is ValueKind.INTEGER:
        return f"CAST({value.sql} AS BIGINT)" if value.literal is None else value.sql
    if value.kind is ValueKind.DOUBLE:
        return f"try_cast({value.sql} AS BIGINT)"
    if value.kind is ValueKind.NUMBER:
        return f"coalesce({value.exact}, try_cast({value.sql} AS BIGINT))"
    return "CAST(NULL AS BIGINT)"


def as_finite(value: Value) -> str:
    """DOUBLE as JSON can have it: NULL where it is infinite or NaN."""
    number = as_double(value)
    if value.kind is ValueKind.INTEGER or value.literal is not None:
        return number
    return f"IF({is_finite(number)}, {number}, NULL)"


def as_exact(value: Value) -> str | None:
    """BIGINT of an integer, also of a text that is one; NULL of all else, None if none ever is."""
    if value.kind is ValueKind.INTEGER:
        return value.sql
    if value.kind is ValueKind.JSON or value.kind in TEXTUAL:
        return f"try_cast({number_in(as_text(value))} AS BIGINT)"
    return value.exact if value.kind is ValueKind.NUMBER else None


def as_int(value: Value) -> str:
    """INT, as Spark's functions take places and lengths; NULL beyond 32 bits."""
    literal = value.literal
    if isinstance(literal, int) and not isinstance(literal, bool) and 0 <= literal < 2**31:
        return str(literal)
    return f"try_cast({as_integer(value)} AS INT)"


def as_array(value: Value) -> str:
    """ARRAY<VARIANT>; text is parsed as JSON."""
    if value.kind is ValueKind.ARRAY:
        return value.sql
    parsed = value if value.kind is ValueKind.JSON else json(as_parsed(value))
    return parsed.get("array<variant>")


def as_map(value: Value) -> str:
    """MAP<STRING, VARIANT>; text is parsed as JSON."""
    parsed = value if value.kind is ValueKind.JSON else json(as_parsed(value))
    return parsed.get("map<string,variant>")


def as_parsed(value: Value) -> str:
    """VARIANT, text taken for JSON."""
    if value.kind is ValueKind.BINARY and value.sql == "payload":
        return "payload_json"
    if value.kind in TEXTUAL:
        return f"try_parse_json({as_text(value)})"
    return as_variant(value)


def as_variant(value: Value) -> str:
    """VARIANT: the value as it stands in JSON."""
    if value.kind is ValueKind.JSON:
        return value.variant
    if value.kind is ValueKind.NULL:
        return "CAST(NULL AS VARIANT)"
    if value.kind is ValueKind.ARRAY:
        return f"to_variant_object({value.sql})"
    if value.kind is ValueKind.NUMBER:
        return as_output(value)
    return f"CAST({as_output(value)} AS VARIANT)"


def as_output(value: Value) -> str:
    """Anything that `to_json` writes as the language says: see `docs/rules.md`."""
    if value.kind is ValueKind.JSON:
        return value.variant
    if value.kind is ValueKind.BINARY:
        return f"coalesce(try_validate_utf8(CAST({value.sql} AS STRING)), base64({value.sql}))"
    if value.kind is ValueKind.BOOLEAN:
        return as_condition(value)
    if value.kind is ValueKind.NULL:
        return "CAST(NULL AS STRING)"
    if value.kind is ValueKind.NUMBER:
        too_large = failure("the number is out of range")
        finite = f"IF(abs({value.sql}) >= {INFINITY}, {too_large}, {value.sql})"
        return f"coalesce(CAST({value.exact} AS VARIANT), CAST({finite} AS VARIANT))"
    if value.kind is ValueKind.DOUBLE:
        return as_finite(value)
    return value.sql


def as_condition(value: Value) -> str:
    """BOOLEAN without NULL."""
    return value.sql if value.literal is not None else f"coalesce({as_possible(value)}, false)"


def as_possible(value: Value) -> str:
    """BOOLEAN where NULL means false; only for kinds that `is_condition` accepts."""
    return f"({value.get('string')} = 'true')" if value.kind is ValueKind.JSON else value.sql


def is_condition(value: Value) -> bool:
    return value.kind in (ValueKind.BOOLEAN, ValueKind.JSON)


def measured(value: Value) -> tuple[str, str]:
    """Return the BIGINT (or NULL) and the DOUBLE (or NULL) of a value, for functions."""
    if value.kind is ValueKind.INTEGER:
        return as_integer(value), as_double(value)
    if value.kind is ValueKind.NUMBER:
        return value.exact, value.sql
    if value.kind is ValueKind.JSON:
        return f"IF({value.json_type} = 'BIGINT', {value.get('bigint')}, NULL)", as_finite(value)
    return "CAST(NULL AS BIGINT)", as_finite(value)


def operand(value: Value) -> tuple[str, str]:
    """Return the BIGINT (or NULL) and the DOUBLE of a value in arithmetic.

    A value that is no number fails the rule for this message, as arithmetic on it has no result.
    """
    if value.kind is ValueKind.INTEGER:
        return as_integer(value), as_double(value)
    if value.kind is ValueKind.DOUBLE:
        return "CAST(NULL AS BIGINT)", f"coalesce({value.sql}, {_not_a_number(value)})"
    if value.kind is ValueKind.NUMBER:
        return value.exact, value.sql
    if value.kind is ValueKind.JSON:
        kind = value.json_type
        exact = f"IF({kind} = 'BIGINT', {value.get('bigint')}, NULL)"
        as_number = f"IF(left({kind}, 3) IN ('BIG', 'DOU', 'DEC'), {value.get('double')}, NULL)"
        return exact, f"coalesce({as_number}, {_not_a_number(value)})"
    return "CAST(NULL AS BIGINT)", _not_a_number(value)


def failure(message: str) -> str:
    """Fail the rule for this message; NULL to the type checker."""
    return f"raise_error({quoted(message)})"


def _not_a_number(value: Value) -> str:
    name = value.name[:100] or "an operand"
    return f"CAST({failure(f'{name} is not a number')} AS DOUBLE)"
