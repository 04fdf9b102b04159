"""Errors in rules, with their places."""

from rules.sql.errors import SqlError


class RuleError(SqlError):
    """A rule's SQL or one of its actions cannot be used."""
