"""Members of records that are JSON objects, read exactly.

Types are compared exactly: to Python true is a number, to the record it is not. All readers raise
`InvalidRecord`, with the member, its value and the expected one.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqlake.errors import InvalidRecord
from mqlake.records import compact_json
from mqlake.records.versions import check_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

MAX_UINT16: Final = 0xFFFF
MAX_UINT32: Final = 0xFFFF_FFFF
MAX_INT64: Final = 2**63 - 1


def parse(data: bytes | str, what: str) -> Any:
    """Return a value of any JSON type."""
    try:
        return compact_json.decode(data)
    except ValueError as exc:
        raise InvalidRecord(f"{what} is not JSON: {exc}") from exc


def load(data: bytes, what: str) -> dict[str, Any]:
    """Return a record's object, of a version that this release reads."""
    found = parse(data, what)
    if type(found) is not dict:
        raise InvalidRecord(f"{what} is {short(found)}, expected an object")
    check_version(found.get("v"), what)
    return found


BOOLEAN: Final = ((bool,), "true or false")
LIST: Final = ((list,), "a list")
OBJECT: Final = ((dict,), "an object")
OPTIONAL_OBJECT: Final = ((dict, type(None)), "an object or null")

_ABSENT: Final = object()
Value = TypeVar("Value")
Record = TypeVar("Record", bound="DataclassInstance")


def member(found: dict[str, Any], name: str, expected: tuple[tuple[type, ...], str]) -> Any:
    """Return a member of one of the types expected, such as `BOOLEAN`."""
    value = found.get(name, _ABSENT)
    types, description = expected
    if type(value) not in types:
        raise refusal(name, value, description)
    return value


def text(found: dict[str, Any], name: str) -> str:
    """Return a member that is text with a form in UTF-8."""
    value = found.get(name, _ABSENT)
    if type(value) is not str:
        raise refusal(name, value, "text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as exc:  # JSON can spell half of a surrogate pair
            raise InvalidRecord(f"member {name!r} has no UTF-8 form") from exc
    return value


def texts(found: dict[str, Any], name: str) -> list[str]:
    """Return a member that is a list of text."""
    value = found.get(name, _ABSENT)
    if type(value) is not list or any(type(one) is not str for one in value):
        raise refusal(name, value, "a list of text")
    return value


def integer(found: dict[str, Any], name: str, low: int = 0, high: int = MAX_INT64) -> int:
    """Return a member that is a number in the range, both ends included."""
    value = found.get(name, _ABSENT)
    if type(value) is not int or not low <= value <= high:
        raise refusal(name, value, f"a number from {low} to {high}")
    return value


def integers(found: dict[str, Any], name: str, low: int = 0, high: int = MAX_INT64) -> list[int]:
    """Return a member that is a list of numbers in the range."""
    value = found.get(name, _ABSENT)
    if not are_integers(value, low, high):
        raise refusal(name, value, f"a list of numbers from {low} to {high}")
    numbers: list[int] = value
    return numbers


def are_integers(value: object, low: int, high: int) -> bool:
    """Tell whether a value is a list of numbers in the range."""
    return type(value) is list and all(type(i) is int and low <= i <= high for i in value)


def optional(
    read: Callable[[dict[str, Any], str], Value], found: dict[str, Any], name: str
) -> Value | None:
    """Return a member that may be null."""
    return None if found.get(name, _ABSENT) is None else read(found, name)


def to_dataclass(class_: type[Record], found: dict[str, Any], what: str) -> Record:
    """Return a dataclass of the members that it knows; their types are not looked at.

    Args:
        class_: Class of the record.
        found: Its members; others are passed over.
        what: The record, for people.
    """
    names = [one.name for one in fields(class_)]
    try:
        return class_(**{name: found[name] for name in names if name in found})
    except TypeError as exc:
        raise InvalidRecord(f"{what} has not all members: {exc}") from exc


def refusal(name: str, value: object, expected: str) -> InvalidRecord:
    """Return the error of a member."""
    if value is _ABSENT:
        return InvalidRecord(f"member {name!r} is missing, expected {expected}")
    return InvalidRecord(f"member {name!r} is {short(value)}, expected {expected}")


def short(value: object) -> str:
    """Return a value as an error shows it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
