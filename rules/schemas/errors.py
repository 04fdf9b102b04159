"""What is wrong with a schema, or with how a rule names one."""

from mqlake.errors import MqlakeError


class SchemaError(MqlakeError):
    """The text of a schema cannot be used."""


class UnknownSchema(MqlakeError):  # noqa: N818 - it names the problem
    """There is no such schema, version or message type.

    Attributes:
        hint: What there is.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint
