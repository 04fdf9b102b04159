"""AND and OR, choosing between values, and telling the ones that are missing."""

from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from rules.language.numerals import is_finite
from rules.language.values import Value, ValueKind, as_integer, as_variant


def is_missing(value: Value) -> str:
    """Return the condition that a value is null: a field that is not there, or null in JSON.

    So is what a function cannot compute, which Spark may say as NaN or infinity.
    """
    if value.kind is ValueKind.JSON:
        return f"({value.variant} IS NULL OR is_variant_null({value.variant}))"
    if value.kind is ValueKind.NUMBER:
        return f"({value.exact} IS NULL AND {value.sql} IS NULL)"
    if value.kind is ValueKind.DOUBLE and value.literal is None:
        return f"(NOT coalesce({is_finite(value.sql)}, false))"
    return "true" if value.kind is ValueKind.NULL else f"({value.sql} IS NULL)"


def is_there(value: Value) -> str:
    """Return the opposite of `is_missing`."""
    return f"(NOT {is_missing(value)})"


def conjuncts(node: exp.Expr | None) -> Iterator[exp.Expr]:
    """Yield the conditions that AND joins, from left to right, without recursion."""
    pending = [] if node is None else [node]
    while pending:
        one = pending.pop()
        if isinstance(one, exp.And):
            pending += (one.expression, one.this)
        else:
            yield one


def all_of(tests: Sequence[str]) -> str:
    """Return the condition that all hold, of conditions whose NULL means false.

    Spark may compute parts that both sides of an AND have in common before either; so where one can
    fail the rule they become branches of CASE, which are left alone.
    """
    if len(tests) == 1:
        return tests[0]
    if not _can_fail(tests):
        return f"({' AND '.join(tests)})"
    *before, last = tests
    branches = "".join(f" WHEN NOT coalesce({test}, false) THEN false" for test in before)
    return f"CASE{branches} ELSE {last} END"


def one_of(tests: Sequence[str]) -> str:
    """Return the condition that one holds, like `all_of`."""
    if len(tests) == 1:
        return tests[0]
    if not _can_fail(tests):
        return f"({' OR '.join(tests)})"
    *before, last = tests
    branches = "".join(f" WHEN {test} THEN true" for test in before)
    return f"CASE{branches} ELSE {last} END"


def _can_fail(tests: Sequence[str]) -> bool:
    return any("raise_error" in test for test in tests)


def choose(branches: Sequence[tuple[str, Value]], default: Value) -> Value:
    """Return `CASE WHEN … THEN … ELSE … END`, of the one kind that all have, else as JSON."""
    kinds = {value.kind for _, value in branches} | {default.kind}
    kinds.discard(ValueKind.NULL)
    if len(kinds) == 1 and not kinds & {ValueKind.JSON, ValueKind.NUMBER}:
        (kind,) = kinds
        spell: Callable[[Value], str] = as_integer if kind is ValueKind.INTEGER else _as_is
    else:
        kind = ValueKind.JSON
        spell = as_variant
    cases = " ".join(f"WHEN {condition} THEN {spell(value)}" for condition, value in branches)
    last = "" if default.kind is ValueKind.NULL else f" ELSE {spell(default)}"
    return Value(kind, f"CASE {cases}{last} END")


def _as_is(value: Value) -> str:
    return value.sql
