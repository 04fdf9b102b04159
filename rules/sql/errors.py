"""Errors in SQL of a user, with their places and hints."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Self

from sqlglot import exp

from mqlake.errors import MqlakeError


class SqlError(MqlakeError):
    """SQL of a user is refused, or fails.

    Attributes:
        problem: The error in words.
        line: 1-based, in the user's text; None for an error without a place there.
        column: 1-based.
        fragment: The part of the text that is wrong.
        hint: Text to write instead; empty without an idea.
    """

    def __init__(
        self,
        problem: str,
        *,
        line: int | None = None,
        column: int | None = None,
        fragment: str = "",
        hint: str = "",
    ) -> None:
        where = "" if line is None else f" (line {line}, column {column})"
        super().__init__(f"{problem}{where}" + (f": {hint}" if hint else ""))
        self.problem = problem
        self.line = line
        self.column = column
        self.fragment = fragment
        self.hint = hint

    @classmethod
    def at(cls, text: str, start: int | None, end: int, problem: str, hint: str = "") -> Self:
        """Return an error of the characters from `start` up to `end`; None: without a place."""
        if start is None:
            return cls(problem, hint=hint)
        before = text[:start]
        return cls(
            problem,
            line=before.count("\n") + 1,
            column=start - before.rfind("\n"),
            fragment=text[start:end][:200],
            hint=hint,
        )

    @classmethod
    def at_node(cls, text: str, node: exp.Expr, problem: str, hint: str = "") -> Self:
        """Return an error of a node; without a place it is where the one around it is."""
        starts = [one.meta["start"] for one in node.walk() if "start" in one.meta]
        if not starts and node.parent is not None:
            return cls.at_node(text, node.parent, problem, hint)
        start = min(starts, default=None)
        return cls.at(text, start, node.meta.get("end", start or 0) + 1, problem, hint)


def did_you_mean(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Ask for the name that is most like an unknown one; empty when none is."""
    return "".join(f"did you mean {one}?" for one in get_close_matches(name, known, 1, likeness))
