"""What is wrong with a rule, and where."""

from rules.sql.errors import SqlError


class RuleError(SqlError):
    """A rule's SQL or one of its actions cannot be used."""
