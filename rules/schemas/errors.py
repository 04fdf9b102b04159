"""Errors in schemas, or in a rule's reference to one."""

from mqlake.errors import MqlakeError


class SchemaError(MqlakeError):
    """The text of a schema cannot be used."""


class UnknownSchema(MqlakeError):  # noqa: N818 - it names the problem
    """There is no such schema, version or message type.

    Attributes:
        hint: The ones that there are.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint
