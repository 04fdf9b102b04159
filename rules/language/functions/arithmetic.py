"""Numbers and bits."""

from collections.abc import Sequence
from typing import Final

from rules.language.functions.function import CallContext, Function, literal_integer
from rules.language.values import (
    Value,
    ValueKind,
    as_double,
    as_exact,
    as_integer,
    double,
    integer,
    measured,
)

_LARGEST: Final = "9.2E18D"
"""Below the largest BIGINT, which no double is."""


def _through(name: str) -> Function:
    return Function(1, 1, lambda a, _: double(f"{name}({as_double(a[0])})"))


def _abs(arguments: Sequence[Value], _context: CallContext) -> Value:
    exact, inexact = measured(arguments[0])
    positive = f"IF({exact} < 0L, try_subtract(0L, {exact}), {exact})"
    return Value(ValueKind.NUMBER, f"abs({inexact})", exact=positive)


def _whole(name: str) -> Function:
    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        exact, inexact = as_exact(arguments[0]), as_double(arguments[0])
        rounded = f"CAST({name}({inexact}) AS BIGINT)"
        in_range = f"IF(abs({inexact}) < {_LARGEST}, {rounded}, NULL)"
        return integer(in_range if exact is None else f"coalesce({exact}, {in_range})")

    return Function(1, 1, emit)


def _round(arguments: Sequence[Value], context: CallContext) -> Value:
    if len(arguments) == 1:
        return _whole("round").emit(arguments, context)
    digits = literal_integer(arguments, 1, "the number of digits", 0, 15)
    return double(f"round({as_double(arguments[0])}, {digits})")


def _two(template: str) -> Function:
    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        return double(template.format(as_double(arguments[0]), as_double(arguments[1])))

    return Function(2, 2, emit)


def _bits(template: str) -> Function:
    def emit(arguments: Sequence[Value], _context: CallContext) -> Value:
        return integer(template.format(*map(as_integer, arguments)))

    count = 2 if "{1}" in template else 1
    return Function(count, count, emit)


def _mod(arguments: Sequence[Value], _context: CallContext) -> Value:
    return integer(f"try_mod({as_integer(arguments[0])}, {as_integer(arguments[1])})")


def _random(_arguments: Sequence[Value], context: CallContext) -> Value:
    # The upper 53 bits of a hash of the message's position: the same for the same message.
    return double(f"(shiftrightunsigned(xxhash64({context.seed()}), 11) / 9007199254740992.0D)")


_THROUGH: Final = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log10", "log2",
    "sin", "sinh", "sqrt", "tan", "tanh", "sign",
)  # fmt: skip

FUNCTIONS: Final = {
    "abs": Function(1, 1, _abs),
    **{name: _through(name) for name in _THROUGH},
    "log": _through("ln"),
    "ln": _through("ln"),
    "ceil": _whole("ceil"),
    "ceiling": _whole("ceil"),
    "floor": _whole("floor"),
    "round": Function(1, 2, _round),
    "fmod": _two("try_mod({}, {})"),
    "power": _two("power({}, {})"),
    "pow": _two("power({}, {})"),
    "mod": Function(2, 2, _mod),
    "random": Function(0, 0, _random),
    "bitnot": _bits("(~ {0})"),
    "bitand": _bits("({0} & {1})"),
    "bitor": _bits("({0} | {1})"),
    "bitxor": _bits("({0} ^ {1})"),
    "bitsl": _bits("shiftleft({0}, CAST(pmod({1}, 64L) AS INT))"),
    "bitsr": _bits("shiftright({0}, CAST(pmod({1}, 64L) AS INT))"),
}
