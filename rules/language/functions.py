"""The functions of the language: under EMQX's names, made of Spark's.

A function never fails: what cannot be computed is NULL. What it is made of is a Spark function of
the same meaning or a short combination; none has side effects, reads files or calls other code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rules.language.limits import Limits
from rules.language.values import (
    Kind,
    Value,
    as_text,
    text,
)


class Unusable(Exception):  # noqa: N818 - it names what was found
    """An argument that a function cannot take.

    Attributes:
        argument: Its index, from 0.
    """

    def __init__(self, problem: str, argument: int = 0) -> None:
        super().__init__(problem)
        self.argument = argument


Emitter = Callable[[Sequence[Value], Limits], Value]


@dataclass(frozen=True, slots=True)
class Function:
    """One function.

    Attributes:
        minimum: Number of arguments.
        maximum: Number of arguments; None is unbounded.
        emit: Makes its Spark SQL.
        is_deterministic: Whether the same message always gives the same.
    """

    minimum: int
    maximum: int | None
    emit: Emitter
    is_deterministic: bool = True


def _topic(arguments: Sequence[Value], _limits: Limits) -> Value:
    if not arguments:
        return text("topic")
    level = arguments[0]
    if level.kind is not Kind.INTEGER or (level.literal is not None and level.literal == 0):
        raise Unusable("topic(n) takes the number of a level, from 1")
    return text(f"try_element_at(split(topic, '/'), CAST({level.sql} AS INT))")


FUNCTIONS: Final[dict[str, Function]] = {
    "topic": Function(0, 1, _topic),
    "upper": Function(1, 1, lambda a, _: text(f"upper({as_text(a[0])})")),
    "lower": Function(1, 1, lambda a, _: text(f"lower({as_text(a[0])})")),
}
