"""Comparisons: `=`, `<>`, `<` and the others for each pair of kinds.

They never fail and never yield NULL where it shows: a field that is missing or of a type that does
not compare gives false, with `<>` too; two missing fields are equal. A number and a text compare as
numbers where the text is one. These are EMQX's rules.
"""

from typing import Final

from rules.language.values import (
    EXACT_IN_DOUBLE,
    NUMERIC,
    TEXTUAL,
    Value,
    ValueKind,
    as_double,
    as_possible,
    as_text,
    as_variant,
    boolean,
)

EQUALITY: Final = frozenset({"=", "<>"})
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


class NotComparable(Exception):  # noqa: N818 - it names the problem
    """Two kinds that no message can make comparable."""


def compare(operator: str, left: Value, right: Value) -> Value:
    """Return the condition `left operator right`.

    Raises:
        NotComparable: No values of these kinds ever compare.
    """
    if right.kind is ValueKind.JSON and left.kind is not ValueKind.JSON:
        left, right, operator = right, left, _MIRRORED[operator]
    if ValueKind.NULL in (left.kind, right.kind):
        raise NotComparable("NULL equals nothing; use IS NULL or IS NOT NULL")
    if left.kind is ValueKind.JSON:
        return boolean(_compare_field(operator, left, right))
    if ValueKind.ARRAY in (left.kind, right.kind):
        return boolean(_as_json(operator, left, right))
    if left.kind is ValueKind.BOOLEAN or right.kind is ValueKind.BOOLEAN:
        if left.kind is not right.kind and not {left.kind, right.kind} & TEXTUAL:
            raise NotComparable("a condition and a number do not compare")
        if left.kind is right.kind:
            return boolean(f"({as_possible(left)} {operator} {as_possible(right)})")
        return boolean(f"({as_text(left)} {operator} {as_text(right)})")
    if left.kind in NUMERIC and right.kind in NUMERIC:
        return boolean(_numbers(operator, left, right))
    if left.kind in NUMERIC or right.kind in NUMERIC:
        return boolean(_doubles(operator, left, right))
    if left.kind is ValueKind.BINARY and right.kind is ValueKind.BINARY:
        return boolean(f"({left.sql} {operator} {right.sql})")
    return boolean(f"({as_text(left)} {operator} {as_text(right)})")


def contains(value: Value, candidates: list[Value]) -> Value:
    """Return the condition `value IN (candidates)`.

    Raises:
        NotComparable: As `compare`.
    """
    literals = [candidate.literal for candidate in candidates]
    if value.kind in (ValueKind.JSON, ValueKind.TEXT, ValueKind.BINARY):
        if all(isinstance(literal, str) for literal in literals):
            return boolean(f"({as_text(value)} IN ({', '.join(c.sql for c in candidates)}))")
        if all(_is_small(candidate) for candidate in candidates):
            listed = ", ".join(as_double(candidate) for candidate in candidates)
            return boolean(f"({as_double(value)} IN ({listed}){_not_boolean(value)})")
    each = [compare("=", value, candidate).sql for candidate in candidates]
    return boolean(f"({' OR '.join(f'coalesce({one}, false)' for one in each)})")


def _compare_field(operator: str, left: Value, right: Value) -> str:
    if right.kind is ValueKind.JSON:
        return _fields(operator, left, right)
    if right.kind is ValueKind.ARRAY:
        return _as_json(operator, left, right)
    if right.kind is ValueKind.BOOLEAN:
        return f"({left.get('string')} {operator} {as_text(right)})"
    if right.kind in NUMERIC:
        if _is_small(right):
            return _doubles(operator, left, right)
        return _numbers(operator, left, right)
    as_texts = f"({left.get('string')} {operator} {as_text(right)})"
    if operator not in EQUALITY and isinstance(right.literal, str) and _is_number(right.literal):
        as_numbers = _doubles(operator, left, right)
        return f"IF({left.json_type} = 'STRING', {as_texts}, {as_numbers})"
    return as_texts


def _fields(operator: str, left: Value, right: Value) -> str:
    """Two fields: as texts when both are, else as numbers; equality also of anything else."""
    are_texts = f"({left.json_type} = 'STRING' AND {right.json_type} = 'STRING')"
    as_texts = f"({left.get('string')} {operator} {right.get('string')})"
    is_boolean = f"{left.json_type} = 'BOOLEAN' OR {right.json_type} = 'BOOLEAN'"
    parts = [f"IF({is_boolean}, NULL, {_numbers(operator, left, right)})"]
    if operator == "=":
        parts.append(f"(to_json({left.variant}) <=> to_json({right.variant}))")
    elif operator == "<>":
        parts.append(_as_json(operator, left, right))
    return f"IF({are_texts}, {as_texts}, coalesce({', '.join(parts)}))"


def _numbers(operator: str, left: Value, right: Value) -> str:
    """Compare as 64 bit integers where both are, else as doubles."""
    if left.kind is right.kind is ValueKind.INTEGER:
        return f"({left.sql} {operator} {right.sql})"
    doubles = _doubles(operator, left, right)
    exact_left, exact_right = _exact(left), _exact(right)
    if exact_left is None or exact_right is None:
        return doubles
    return f"coalesce(({exact_left} {operator} {exact_right}), {doubles})"


def _doubles(operator: str, left: Value, right: Value) -> str:
    """Compare as doubles; text such as `NaN`, which Spark takes for the greatest, is below."""
    if operator in (">", ">=") and left.literal is None:
        test = f"(- {as_double(left)}) {_MIRRORED[operator]} (- {as_double(right)})"
    else:
        test = f"{as_double(left)} {operator} {as_double(right)}"
    return f"({test}{_not_boolean(left)}{_not_boolean(right)})"


def _not_boolean(value: Value) -> str:
    """Rule out booleans, Spark's 1 and 0; asked last, so only where the rest is true."""
    return f" AND {value.json_type} <> 'BOOLEAN'" if value.kind is ValueKind.JSON else ""


def _exact(value: Value) -> str | None:
    if value.kind is ValueKind.JSON:
        return f"IF({value.json_type} = 'BIGINT', {value.get('bigint')}, NULL)"
    if value.kind is ValueKind.INTEGER:
        return value.sql
    return value.exact if value.kind is ValueKind.NUMBER else None


def _as_json(operator: str, left: Value, right: Value) -> str:
    if operator not in EQUALITY:
        raise NotComparable("arrays have no order")
    return f"(to_json({as_variant(left)}) {operator} to_json({as_variant(right)}))"


def _is_small(value: Value) -> bool:
    """Whether a double tells the constant from every other number a message can hold."""
    literal = value.literal
    if isinstance(literal, bool) or not isinstance(literal, int | float):
        return False
    return isinstance(literal, float) or abs(literal) < EXACT_IN_DOUBLE


def _is_number(literal: str) -> bool:
    try:
        float(literal)
    except ValueError:
        return False
    return True
