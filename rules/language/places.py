"""Where in a rule's text something is wrong."""

from rules.errors import RuleError


def error_at(sql: str, start: int, end: int, problem: str, hint: str = "") -> RuleError:
    """Say what is wrong with the characters from `start` up to `end`."""
    before = sql[:start]
    return RuleError(
        problem,
        line=before.count("\n") + 1,
        column=start - (before.rfind("\n") + 1) + 1,
        fragment=sql[start:end][:200],
        hint=hint,
    )
