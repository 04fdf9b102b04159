"""Comparisons: `=`, `<>`, `<` and the others for each pair of kinds.

They never fail and never yield NULL where it shows: a field that is missing or of a type that does
not compare gives false, with `<>` too; two missing fields are equal. A number and a text compare as
numbers where the text is one (`numerals`). These are EMQX's rules.
"""

from typing import Final

from rules.language.numerals import (
    INFINITY,
    is_finite,
    is_number,
    is_plain_integer,
    read_number,
)
from rules.language.values import (
    EXACT_IN_DOUBLE,
    NUMERIC,
    TEXTUAL,
    Value,
    ValueKind,
    as_double,
    as_exact,
    as_finite,
    as_possible,
    as_text,
    as_variant,
    boolean,
    constant,
    failure,
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
    if left.kind in NUMERIC or right.kind in NUMERIC:
        return boolean(_numbers(operator, left, right))
    if left.kind is ValueKind.BINARY and right.kind is ValueKind.BINARY:
        return boolean(f"({left.sql} {operator} {right.sql})")
    return boolean(f"({as_text(left)} {operator} {as_text(right)})")


def contains(value: Value, candidates: list[Value]) -> Value:
    """Return the condition `value IN (candidates)`.

    Raises:
        NotComparable: As `compare`.
    """
    if value.kind in (ValueKind.JSON, ValueKind.TEXT, ValueKind.BINARY):
        texts = [one for one in candidates if isinstance(one.literal, str)]
        numbers = [one for one in candidates if _is_small(one)]
        if len(texts) + len(numbers) == len(candidates):
            return boolean(_contains(value, texts, numbers))
    each = [compare("=", value, candidate).sql for candidate in candidates]
    return boolean(f"({' OR '.join(f'coalesce({one}, false)' for one in each)})")


def _contains(value: Value, texts: list[Value], numbers: list[Value]) -> str:
    """IN of constants: a list for each way to compare, however many they are."""
    ways = []
    if texts:
        ways.append(f"({as_text(value)} IN ({', '.join(one.sql for one in texts)}))")
    if numbers:
        listed = ", ".join(as_double(one) for one in numbers)
        ways.append(f"({_quick(value)} IN ({listed}){_is_number(value)})")
    others = [one for one in texts if not is_plain_integer(one.literal)]
    written = [number for one in others if (number := _number_of(one)) is not None]
    if written and value.kind is ValueKind.JSON:
        listed = ", ".join(as_double(one) for one in written)
        is_text = f"{value.json_type} = 'STRING'"
        ways.append(f"({_quick(value)} IN ({listed}){_is_number(value)} AND NOT {is_text})")
    return ways[0] if len(ways) == 1 else f"({' OR '.join(f'coalesce({w}, false)' for w in ways)})"


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
    return _with_text(operator, left, right)


def _with_text(operator: str, left: Value, right: Value) -> str:
    """A field and a text: as texts when the field is one, else as numbers if the text is one."""
    as_texts = f"({left.get('string')} {operator} {as_text(right)})"
    is_text = f"{left.json_type} = 'STRING'"
    if isinstance(right.literal, str):
        number = _number_of(right)
        if number is None and operator not in EQUALITY:
            return f"({is_text} AND {as_texts})"
        if number is None or (operator in EQUALITY and is_plain_integer(right.literal)):
            return as_texts  # the engine looks at such a condition first, see Guard.java
        right = number
    as_numbers = _numbers(operator, left, right)
    if operator in EQUALITY:
        as_numbers = f"coalesce({as_numbers}, {as_texts})"
    return f"IF({is_text}, {as_texts}, {as_numbers})"


def _number_of(value: Value) -> Value | None:
    """Return a written text as the number that it is."""
    number = read_number(value.literal)
    return None if number is None else constant(number)


def _fields(operator: str, left: Value, right: Value) -> str:
    """Two fields: as texts when both are, else as numbers; equality also of anything else."""
    are_texts = f"({left.json_type} = 'STRING' AND {right.json_type} = 'STRING')"
    as_texts = f"({left.get('string')} {operator} {right.get('string')})"
    parts = [_numbers(operator, left, right)]
    if operator == "=":
        parts.append(f"(to_json({left.variant}) <=> to_json({right.variant}))")
    elif operator == "<>":
        parts.append(_as_json(operator, left, right))
    return f"IF({are_texts}, {as_texts}, coalesce({', '.join(parts)}))"


def _numbers(operator: str, left: Value, right: Value) -> str:
    """Compare as 64 bit integers where both are, else as doubles; NULL if one is no number."""
    if left.kind is right.kind is ValueKind.INTEGER:
        return f"({left.sql} {operator} {right.sql})"
    doubles = f"({_double(left)} {operator} {_double(right)})"
    exact_left, exact_right = as_exact(left), as_exact(right)
    if exact_left is None or exact_right is None:
        return doubles
    return f"coalesce(({exact_left} {operator} {exact_right}), {doubles})"


def _doubles(operator: str, left: Value, right: Value) -> str:
    """Compare as doubles; false or NULL if one is no number, which is asked last."""
    test = f"{_quick(left)} {operator} {_quick(right)}"
    return f"({test}{_is_number(left)}{_is_number(right)})"


def _double(value: Value) -> str:
    """DOUBLE of a number; arithmetic that has no result fails the rule, as in the output."""
    if value.kind is not ValueKind.NUMBER:
        return as_finite(value)
    no_result = f"CAST({failure('the number is out of range')} AS DOUBLE)"
    number = as_double(value)
    return f"IF(abs({number}) >= {INFINITY}, {no_result}, {number})"


def _quick(value: Value) -> str:
    """DOUBLE as Spark reads it, good where `_is_number` holds too."""
    return value.get("double") if value.kind is ValueKind.JSON else _double(value)


def _is_number(value: Value) -> str:
    """Rule out what Spark takes for a number and the language does not; see `_doubles`."""
    if value.kind is not ValueKind.JSON:
        return ""
    is_written = f"{is_number(value.get('string'))} AND {is_finite(value.get('double'))}"
    return f" AND (left({value.json_type}, 3) IN ('BIG', 'DEC') OR {is_written})"


def _as_json(operator: str, left: Value, right: Value) -> str:
    if operator not in EQUALITY:
        raise NotComparable("arrays have no order")
    return f"(to_json({as_variant(left)}) {operator} to_json({as_variant(right)}))"


def _is_small(value: Value) -> bool:
    """Tell whether a double tells the constant from every other number a message can hold."""
    literal = value.literal
    if isinstance(literal, bool) or not isinstance(literal, int | float):
        return False
    return isinstance(literal, float) or abs(literal) < EXACT_IN_DOUBLE
