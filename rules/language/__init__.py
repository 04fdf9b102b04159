"""The rule language: from a user's SQL to one Spark SQL expression over a message's row."""

from rules.language.compiled import CompiledRule, Condition, Field
from rules.language.compiler import compile_rule
from rules.language.limits import DEFAULT_LIMITS, Limits

__all__ = ["DEFAULT_LIMITS", "CompiledRule", "Condition", "Field", "Limits", "compile_rule"]
