"""Objects (maps) and arrays."""

from collections.abc import Sequence
from typing import Final

from rules.language.functions.function import CallContext, Function, Unusable, literal_text
from rules.language.values import (
    Value,
    ValueKind,
    as_array,
    as_int,
    as_map,
    as_parsed,
    as_text,
    as_variant,
    boolean,
    field_of,
    integer,
    json,
)
from rules.sql.quoting import quoted

_NO_FIELDS: Final = "CAST(map() AS MAP<STRING, VARIANT>)"
_MAX_KEYS: Final = 32


def _parsed(value: Value) -> Value:
    return value if value.kind is ValueKind.JSON else json(as_parsed(value), name=value.name)


def _path(arguments: Sequence[Value]) -> list[str]:
    keys = literal_text(arguments, 0, "the key").split(".")
    if len(keys) > _MAX_KEYS:
        raise Unusable(f"more than {_MAX_KEYS} keys inside each other")
    return keys


def _map_get(arguments: Sequence[Value], _context: CallContext) -> Value:
    """A key may go down with dots, as in EMQX."""
    found = _parsed(arguments[1])
    for key in _path(arguments):
        found = field_of(found, key)
    return _or_default(found, arguments)


def _mget(arguments: Sequence[Value], _context: CallContext) -> Value:
    if isinstance(arguments[0].literal, str):
        found = field_of(_parsed(arguments[1]), arguments[0].literal)
    else:
        found = json(f"try_element_at({as_map(arguments[1])}, {as_text(arguments[0])})")
    return _or_default(found, arguments)


def _or_default(found: Value, arguments: Sequence[Value]) -> Value:
    if len(arguments) < 3:
        return found
    return json(f"coalesce({found.variant}, {as_variant(arguments[2])})", name=found.name)


def _map_put(arguments: Sequence[Value], _context: CallContext) -> Value:
    return _put(_path(arguments), arguments[1], _parsed(arguments[2]))


def _mput(arguments: Sequence[Value], _context: CallContext) -> Value:
    key = literal_text(arguments, 0, "the key")
    return _put([key], arguments[1], _parsed(arguments[2]))


def _put(path: Sequence[str], value: Value, into: Value) -> Value:
    key, *rest = path
    if rest:
        value = _put(rest, value, field_of(into, key))
    others = f"map_filter({as_map(into)}, (k, v) -> k <> {quoted(key)})"
    added = f"map({quoted(key)}, {as_variant(value)})"
    return json(f"to_variant_object(map_concat(coalesce({others}, {_NO_FIELDS}), {added}))")


def _map_keys(arguments: Sequence[Value], _context: CallContext) -> Value:
    keys = f"map_keys({as_map(arguments[0])})"
    return Value(ValueKind.ARRAY, f"transform({keys}, e -> CAST(e AS VARIANT))")


def _map_values(arguments: Sequence[Value], _context: CallContext) -> Value:
    return Value(ValueKind.ARRAY, f"map_values({as_map(arguments[0])})")


def _map_to_entries(arguments: Sequence[Value], _context: CallContext) -> Value:
    entry = "to_variant_object(named_struct('key', e.key, 'value', e.value))"
    return Value(ValueKind.ARRAY, f"transform(map_entries({as_map(arguments[0])}), e -> {entry})")


def _map_size(arguments: Sequence[Value], _context: CallContext) -> Value:
    return integer(f"size({as_map(arguments[0])})")


def _map_new(_arguments: Sequence[Value], _context: CallContext) -> Value:
    return json("parse_json('{}')")


def _nth(arguments: Sequence[Value], _context: CallContext) -> Value:
    place = as_int(arguments[0])
    if arguments[0].literal == 0:
        raise Unusable("there is no element 0; the first is 1")
    if arguments[0].literal is None:
        place = f"IF({place} = 0, NULL, {place})"
    return json(f"try_element_at({as_array(arguments[1])}, {place})")


def _end(place: int) -> Function:
    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        return json(f"try_element_at({as_array(arguments[0])}, {place})")

    return Function(1, 1, emit)


def _length(arguments: Sequence[Value], _context: CallContext) -> Value:
    """Return the length: of arrays as in EMQX, of text as in SQL."""
    value = arguments[0]
    if value.kind in (ValueKind.TEXT, ValueKind.BINARY):
        return integer(f"length({as_text(value)})")
    elements = f"size({as_array(value)})"
    if value.kind is ValueKind.JSON:
        return integer(f"IF({value.json_type} = 'STRING', length({as_text(value)}), {elements})")
    return integer(elements)


def _sublist(arguments: Sequence[Value], _context: CallContext) -> Value:
    start = "1" if len(arguments) == 2 else f"greatest({as_int(arguments[0])}, 1)"
    count = f"greatest({as_int(arguments[-2])}, 0)"
    return Value(ValueKind.ARRAY, f"slice({as_array(arguments[-1])}, {start}, {count})")


def _contains(arguments: Sequence[Value], _context: CallContext) -> Value:
    wanted = f"to_json({as_variant(arguments[0])})"
    return boolean(f"exists({as_array(arguments[1])}, e -> to_json(e) = {wanted})")


FUNCTIONS: Final = {
    "map_new": Function(0, 0, _map_new),
    "map_get": Function(2, 3, _map_get),
    "map_put": Function(3, 3, _map_put),
    "mget": Function(2, 3, _mget),
    "mput": Function(3, 3, _mput),
    "map_keys": Function(1, 1, _map_keys),
    "map_values": Function(1, 1, _map_values),
    "map_to_entries": Function(1, 1, _map_to_entries),
    "map_size": Function(1, 1, _map_size),
    "nth": Function(2, 2, _nth),
    "first": _end(1),
    "last": _end(-1),
    "length": Function(1, 1, _length),
    "sublist": Function(2, 3, _sublist),
    "contains": Function(2, 2, _contains),
}
