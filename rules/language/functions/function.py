"""Functions of the language: their model, and helpers that their modules share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rules.language.limits import Limits
from rules.language.values import Value, ValueKind, failure


class Unusable(Exception):  # noqa: N818 - it names the problem
    """An argument that a function cannot take.

    Attributes:
        argument: Its index, from 0.
    """

    def __init__(self, problem: str, argument: int = 0) -> None:
        super().__init__(problem)
        self.argument = argument


class CallContext(Protocol):
    """Context of a call."""

    limits: Limits

    def column(self, name: str, *path: str | int) -> Value:
        """Return a column of the rule, or a field of it."""

    def seed(self) -> str:
        """Return numbers that tell this call on this message from all others, in Spark SQL."""

    def layout(self, name: str, version: int | None, message_type: str | None) -> str:
        """Return the name by which `mqlake_decode` knows the layout of a schema.

        Raises:
            UnknownSchema: There is no such schema.
        """


Emitter = Callable[[Sequence[Value], CallContext], Value]


@dataclass(frozen=True, slots=True)
class Function:
    """One function.

    Attributes:
        minimum: Number of arguments.
        maximum: Number of arguments; None is unbounded.
        emit: Makes its Spark SQL.
    """

    minimum: int
    maximum: int | None
    emit: Emitter


def literal_text(arguments: Sequence[Value], index: int, what: str) -> str:
    """Return an argument that must be written out as text."""
    literal = arguments[index].literal
    if not isinstance(literal, str):
        raise Unusable(f"{what} must be written out in single quotes", index)
    return literal


def literal_choice(arguments: Sequence[Value], index: int, choices: Sequence[str]) -> str:
    """Return an argument that must be one of a few words; the first when it is not there."""
    if index >= len(arguments):
        return choices[0]
    literal = arguments[index].literal
    if literal not in choices:
        raise Unusable(f"expected one of {', '.join(map(repr, choices))}", index)
    return str(literal)


def literal_integer(arguments: Sequence[Value], index: int, what: str, low: int, high: int) -> int:
    """Return an argument that must be written out as an integer from `low` to `high`."""
    literal = arguments[index].literal
    if isinstance(literal, bool) or not isinstance(literal, int) or not low <= literal <= high:
        raise Unusable(f"{what} must be an integer written out, from {low} to {high}", index)
    return literal


def bounded(size: str, limit: int, sql: str, what: str) -> str:
    """Fail the rule for this message when a size is above the limit, else go on with `sql`."""
    problem = failure(f"{what} is longer than {limit}")
    return f"IF({size} > {limit}, {problem}, {sql})"


def texts(sql: str) -> Value:
    """Return an ARRAY<STRING> as an array of the language."""
    return Value(ValueKind.ARRAY, f"transform({sql}, e -> CAST(e AS VARIANT))")
