"""Types: testing and converting them; choosing between values."""

from collections.abc import Sequence
from typing import Final

from rules.language.choosing import choose, is_missing, is_there
from rules.language.comparing import NotComparable, compare
from rules.language.functions.function import (
    CallContext,
    Function,
    Unusable,
    literal_integer,
    literal_text,
)
from rules.language.numerals import is_finite
from rules.language.values import (
    NULL,
    NUMERIC,
    TEXTUAL,
    Value,
    ValueKind,
    as_bytes,
    as_double,
    as_finite,
    as_integer,
    as_parsed,
    as_possible,
    as_text,
    as_variant,
    boolean,
    double,
    integer,
    is_condition,
    json,
    text,
)

_INTEGERS: Final = "('BIGINT', 'DECIMAL(19,0)', 'DECIMAL(20,0)')"


def _int(arguments: Sequence[Value], _context: CallContext) -> Value:
    value = arguments[0]
    if value.kind is ValueKind.BOOLEAN:
        return integer(f"IF({as_possible(value)}, 1L, 0L)")
    if value.kind is ValueKind.JSON:
        is_boolean = f"{value.json_type} = 'BOOLEAN'"
        return integer(f"IF({is_boolean}, {value.get('bigint')}, {as_integer(value)})")
    return integer(as_integer(value))


def _float(arguments: Sequence[Value], _context: CallContext) -> Value:
    if len(arguments) == 1:
        return double(as_double(arguments[0]))
    digits = literal_integer(arguments, 1, "the number of digits", 0, 15)
    return double(f"round({as_double(arguments[0])}, {digits})")


def _float2str(arguments: Sequence[Value], _context: CallContext) -> Value:
    digits = literal_integer(arguments, 1, "the number of digits", 0, 15)
    number = as_finite(arguments[0])
    fixed = f"format_string('%.{digits}f', {number})"
    # At most this number of digits, at least one behind the point.
    short = f"regexp_replace({fixed}, '([.][0-9]+?)0+\\u0024', '\\u00241')"
    return text(f"IF({number} IS NULL, NULL, {short if digits else fixed})")


def _bool(arguments: Sequence[Value], _context: CallContext) -> Value:
    value = arguments[0]
    if value.kind is ValueKind.BOOLEAN:
        return value
    words = f"lower({as_text(value)})"
    return json(
        f"CAST(CASE WHEN {words} IN ('true', '1') THEN true "
        f"WHEN {words} IN ('false', '0') THEN false END AS VARIANT)"
    )


def _str(arguments: Sequence[Value], _context: CallContext) -> Value:
    return text(as_text(arguments[0]))


def _utf16(arguments: Sequence[Value], _context: CallContext) -> Value:
    return Value(ValueKind.BINARY, f"encode({as_text(arguments[0])}, 'UTF-16LE')")


def _map(arguments: Sequence[Value], _context: CallContext) -> Value:
    parsed = _decoded(arguments[0])
    return json(f"IF(startswith(schema_of_variant({parsed}), 'OBJECT'), {parsed}, NULL)")


def _json_decode(arguments: Sequence[Value], _context: CallContext) -> Value:
    return json(_decoded(arguments[0]), name=arguments[0].name)


def _decoded(value: Value) -> str:
    """VARIANT, text taken for JSON, be it a field's."""
    if value.kind is not ValueKind.JSON:
        return as_parsed(value)
    parsed = f"try_parse_json({as_text(value)})"
    return f"IF({value.json_type} = 'STRING', {parsed}, {value.variant})"


def _json_encode(arguments: Sequence[Value], _context: CallContext) -> Value:
    return text(f"to_json({as_variant(arguments[0])})")


def _cast(arguments: Sequence[Value], context: CallContext) -> Value:
    kind = literal_text(arguments, 1, "the type").lower()
    if kind in ("string", "varchar", "text"):
        return _str(arguments[:1], context)
    if kind in ("int", "integer", "bigint", "long"):
        return _int(arguments[:1], context)
    if kind in ("double", "float"):
        return _float(arguments[:1], context)
    if kind in ("boolean", "bool"):
        return _bool(arguments[:1], context)
    if kind in ("binary", "bytes"):
        return Value(ValueKind.BINARY, as_bytes(arguments[0]))
    raise Unusable("expected one of the types STRING, BIGINT, DOUBLE, BOOLEAN, BINARY", 1)


def _type_test(kinds: frozenset[ValueKind], of_field: str) -> Function:
    """Test a type: known beforehand of all but fields."""

    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        value = arguments[0]
        if value.kind is ValueKind.JSON:
            return boolean(f"({of_field.format(value.json_type)})")
        if value.kind in kinds:
            return boolean(is_there(value))
        return boolean("false")

    return Function(1, 1, emit)


def _is_num(arguments: Sequence[Value], _context: CallContext) -> Value:
    value = arguments[0]
    if value.kind is ValueKind.JSON:
        return boolean(f"({_is_json_number(value)})")
    return boolean(is_there(value) if value.kind in NUMERIC else "false")


def _is_json_number(value: Value) -> str:
    """Tell whether a field is a number on which arithmetic does not fail: 1e999 is none."""
    kind, number = value.json_type, value.get("double")
    return f"left({kind}, 3) IN ('BIG', 'DOU', 'DEC') AND {is_finite(number)}"


def _is_int(arguments: Sequence[Value], _context: CallContext) -> Value:
    value = arguments[0]
    if value.kind is ValueKind.NUMBER:
        return boolean(f"({value.exact} IS NOT NULL)")
    if value.kind is ValueKind.JSON:
        return boolean(f"({value.json_type} IN {_INTEGERS})")
    return boolean(f"({value.sql} IS NOT NULL)" if value.kind is ValueKind.INTEGER else "false")


def _is_float(arguments: Sequence[Value], _context: CallContext) -> Value:
    value = arguments[0]
    if value.kind is ValueKind.NUMBER:
        return boolean(f"({value.exact} IS NULL AND {value.sql} IS NOT NULL)")
    if value.kind is ValueKind.JSON:
        kind = value.json_type
        return boolean(f"({_is_json_number(value)} AND NOT {kind} IN {_INTEGERS})")
    return boolean(is_there(value) if value.kind is ValueKind.DOUBLE else "false")


def _is_null(arguments: Sequence[Value], _context: CallContext) -> Value:
    """Only a missing value: null of JSON is a value, as in EMQX."""
    value = arguments[0]
    if value.kind is ValueKind.JSON:
        return boolean(f"({value.variant} IS NULL)")
    return boolean(is_missing(value))


def _is_null_var(arguments: Sequence[Value], _context: CallContext) -> Value:
    return boolean(is_missing(arguments[0]))


def _not(emitted: Function) -> Function:
    def emit(arguments: Sequence[Value], context: CallContext) -> Value:
        return boolean(f"(NOT {emitted.emit(arguments, context).sql})")

    return Function(emitted.minimum, emitted.maximum, emit)


def _is_empty(arguments: Sequence[Value], _context: CallContext) -> Value:
    value = arguments[0]
    if value.kind is ValueKind.ARRAY:
        return boolean(f"(size({value.sql}) = 0)")
    shown = f"to_json({as_variant(value)})"
    return boolean(f"""({shown} IN ('""', '[]', '{{}}'))""")


def _coalesce(arguments: Sequence[Value], _context: CallContext) -> Value:
    """The first that is there; null of JSON is not."""
    *before, last = arguments
    return choose([(is_there(value), value) for value in before], last)


def _coalesce_ne(arguments: Sequence[Value], _context: CallContext) -> Value:
    """The first that is there and not an empty text."""
    *before, last = arguments
    tested = [(f"({as_text(value)} <> '')", value) for value in before]
    return choose(tested, last)


def _if(arguments: Sequence[Value], _context: CallContext) -> Value:
    if not is_condition(arguments[0]):
        raise Unusable(f"expected a condition, this is {arguments[0].kind.value}")
    other = arguments[2] if len(arguments) > 2 else NULL
    return choose([(as_possible(arguments[0]), arguments[1])], other)


def _nullif(arguments: Sequence[Value], _context: CallContext) -> Value:
    try:
        equal = compare("=", arguments[0], arguments[1])
    except NotComparable as exc:
        raise Unusable(str(exc), 1) from exc
    return choose([(f"NOT coalesce({equal.sql}, false)", arguments[0])], NULL)


def _extreme(name: str) -> Function:
    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        for index, value in enumerate(arguments):
            if value.kind not in (*NUMERIC, *TEXTUAL, ValueKind.JSON):
                raise Unusable(f"expected a number, this is {value.kind.value}", index)
        spell = as_integer if all(v.kind is ValueKind.INTEGER for v in arguments) else as_finite
        found = f"{name}({', '.join(map(spell, arguments))})"
        return integer(found) if spell is as_integer else double(found)

    return Function(2, 100, emit)


def _eq(arguments: Sequence[Value], _context: CallContext) -> Value:
    try:
        return compare("=", arguments[0], arguments[1])
    except NotComparable as exc:
        raise Unusable(str(exc), 1) from exc


_IS_NULL: Final = Function(1, 1, _is_null)
_IS_NULL_VAR: Final = Function(1, 1, _is_null_var)

FUNCTIONS: Final = {
    "str": Function(1, 1, _str),
    "str_utf8": Function(1, 1, _str),
    "str_utf16_le": Function(1, 1, _utf16),
    "bool": Function(1, 1, _bool),
    "int": Function(1, 1, _int),
    "float": Function(1, 2, _float),
    "float2str": Function(2, 2, _float2str),
    "map": Function(1, 1, _map),
    "json_decode": Function(1, 1, _json_decode),
    "json_encode": Function(1, 1, _json_encode),
    "cast": Function(2, 2, _cast),
    "is_null": _IS_NULL,
    "is_not_null": _not(_IS_NULL),
    "is_null_var": _IS_NULL_VAR,
    "is_not_null_var": _not(_IS_NULL_VAR),
    "is_str": _type_test(TEXTUAL, "{} = 'STRING'"),
    "is_bool": _type_test(frozenset({ValueKind.BOOLEAN}), "{} = 'BOOLEAN'"),
    "is_int": Function(1, 1, _is_int),
    "is_float": Function(1, 1, _is_float),
    "is_num": Function(1, 1, _is_num),
    "is_map": _type_test(frozenset(), "startswith({}, 'OBJECT')"),
    "is_array": _type_test(frozenset({ValueKind.ARRAY}), "startswith({}, 'ARRAY')"),
    "is_empty": Function(1, 1, _is_empty),
    "eq": Function(2, 2, _eq),
    "coalesce": Function(2, 100, _coalesce),
    "coalesce_ne": Function(2, 100, _coalesce_ne),
    "ifnull": Function(2, 2, _coalesce),
    "nvl": Function(2, 2, _coalesce),
    "nullif": Function(2, 2, _nullif),
    "if": Function(2, 3, _if),
    "iif": Function(2, 3, _if),
    "greatest": _extreme("greatest"),
    "least": _extreme("least"),
}
