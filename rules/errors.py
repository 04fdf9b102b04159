"""What is wrong with a rule, and where."""

from mqlake.errors import MqlakeError


class RuleError(MqlakeError):
    """A rule's SQL or one of its actions cannot be used.

    Attributes:
        line: 1-based, in the rule's SQL; None for what has no place there.
        column: 1-based.
        fragment: The part of the text that is wrong.
        hint: What to write instead; empty without an idea.
    """

    def __init__(
        self,
        message: str,
        *,
        line: int | None = None,
        column: int | None = None,
        fragment: str = "",
        hint: str = "",
    ) -> None:
        where = "" if line is None else f" (line {line}, column {column})"
        super().__init__(f"{message}{where}" + (f": {hint}" if hint else ""))
        self.problem = message
        self.line = line
        self.column = column
        self.fragment = fragment
        self.hint = hint
