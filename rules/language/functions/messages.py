"""The message itself: its topic, its publisher, its time, values made from its position."""

from collections.abc import Sequence
from typing import Final

from rules.language.functions.function import CallContext, Function, Unusable, literal_text
from rules.language.values import NULL, Value, ValueKind, as_text, text


def _topic(arguments: Sequence[Value], context: CallContext) -> Value:
    """The topic, or one level of it, from 1."""
    whole = context.column("topic")
    if not arguments:
        return whole
    level = arguments[0]
    if level.kind is not ValueKind.INTEGER or level.literal is None or level.literal < 1:
        raise Unusable("topic(n) takes the number of a level written out, from 1")
    if level.literal > 65_536:
        raise Unusable("no topic has that many levels")
    return text(f"try_element_at(split({whole.sql}, '/'), {level.literal})")


def _column(name: str) -> Function:
    return Function(0, 0, lambda _, context: context.column(name))


def _payload(arguments: Sequence[Value], context: CallContext) -> Value:
    if not arguments:
        return context.column("payload")
    return context.column("payload", *literal_text(arguments, 0, "the path").split("."))


def _flag(arguments: Sequence[Value], context: CallContext) -> Value:
    return context.column("flags", literal_text(arguments, 0, "the flag's name"))


def _uuid(separator: str) -> Function:
    """A version 4 UUID made of a hash of the message's position: the same for the same message."""

    def emit(_arguments: Sequence[Value], context: CallContext) -> Value:
        digits = f"md5(concat_ws(',', {context.seed()}))"
        variant = f"substring('89ab', 1 + ascii(substring({digits}, 17, 1)) % 4, 1)"
        parts = (
            f"substring({digits}, 1, 8)",
            f"substring({digits}, 9, 4)",
            f"concat('4', substring({digits}, 14, 3))",
            f"concat({variant}, substring({digits}, 18, 3))",
            f"substring({digits}, 21, 12)",
        )
        return text(f"concat_ws('{separator}', {', '.join(parts)})")

    return Function(0, 0, emit)


def _topic_split(arguments: Sequence[Value], _context: CallContext) -> Value:
    parts = f"split({as_text(arguments[0])}, '/', -1)"
    return Value(ValueKind.ARRAY, f"transform({parts}, e -> CAST(e AS VARIANT))")


FUNCTIONS: Final = {
    "topic": Function(0, 1, _topic),
    "clientid": _column("clientid"),
    "username": _column("username"),
    "peerhost": _column("peerhost"),
    "clientip": _column("peerhost"),
    "msgid": _column("id"),
    "qos": _column("qos"),
    "flags": _column("flags"),
    "flag": Function(1, 1, _flag),
    "payload": Function(0, 1, _payload),
    "null": Function(0, 0, lambda _a, _c: NULL),
    "uuid_v4": _uuid("-"),
    "newuuid": _uuid("-"),
    "uuid_v4_no_hyphen": _uuid(""),
    "topic_split": Function(1, 1, _topic_split),
}
