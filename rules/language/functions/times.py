"""Times: milliseconds and other units since 1970, and text.

All of it is arithmetic on UTC, so no session's time zone has a part in it. "Now" is when the
gateway accepted the message: a replay and a run over the history give the same.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from rules.language.functions.function import (
    CallContext,
    Function,
    Unusable,
    literal_choice,
    literal_text,
)
from rules.language.values import Value, as_integer, as_text, integer, text
from rules.sql.quoting import quoted

_UNITS: Final = {
    "second": 1,
    "millisecond": 1_000,
    "microsecond": 1_000_000,
    "nanosecond": 1_000_000_000,
}
_DIGITS: Final = {"second": 0, "millisecond": 3, "microsecond": 6, "nanosecond": 9}
_LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999."""

_FIRST_SECOND: Final = -62_135_596_800
"""The beginning of the year 1."""

_OFFSET: Final = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})(?::?([0-9]{2}))?\Z")
_RFC3339: Final = quoted(
    r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})\z"
)


def _unit(arguments: Sequence[Value], index: int, default: str = "second") -> str:
    if index >= len(arguments):
        return default
    return literal_choice(arguments, index, tuple(_UNITS))


def _now(context: CallContext, unit: str) -> str:
    milliseconds = context.column("timestamp").sql
    scale = _UNITS[unit]
    if scale >= 1_000:
        return f"({milliseconds} * {scale // 1_000}L)"
    return f"({milliseconds} div 1000L)"


def _offset(arguments: Sequence[Value], index: int) -> int:
    """Seconds east of Greenwich."""
    literal = arguments[index].literal
    if isinstance(literal, int) and not isinstance(literal, bool) and abs(literal) < 86_400:
        return literal
    if literal in ("Z", "z", "local", ""):
        return 0
    if isinstance(literal, str) and (found := _OFFSET.match(literal)):
        sign, hours, minutes, seconds = found.groups()
        total = int(hours) * 3_600 + int(minutes) * 60 + int(seconds or 0)
        return -total if sign == "-" else total
    raise Unusable("expected an offset like 'Z', '+02:00' or a number of seconds", index)


def _signed(number: int) -> str:
    return f"{number}L" if number >= 0 else f"(- {-number}L)"


def _two(sql: str) -> str:
    return f"lpad(CAST({sql} AS STRING), 2, '0')"


class _Moment:
    """The parts of a moment, each Spark SQL of its text."""

    def __init__(self, time: str, unit: str, offset: int) -> None:
        self._time = time
        self._unit = unit
        self.offset = offset
        seconds = _exact_seconds(time, unit)
        self.seconds = f"try_add({seconds}, {_signed(offset)})" if offset else seconds
        self._date = f"date_from_unix_date(CAST({_floor_div(self.seconds, 86_400)} AS INT))"

    def date(self) -> str:
        return f"CAST({self._date} AS STRING)"

    def part(self, name: str) -> str:
        if name == "year":
            return f"lpad(CAST(year({self._date}) AS STRING), 4, '0')"
        return _two(f"{name}({self._date})")

    def of_day(self, divisor: int, modulus: int) -> str:
        return _two(f"pmod({self.seconds}, {modulus}L) div {divisor}L")

    def fraction(self, digits: int) -> str:
        have = _DIGITS[self._unit]
        if have == 0:
            return quoted("0" * digits)
        whole = f"lpad(CAST(pmod({self._time}, {_UNITS[self._unit]}L) AS STRING), {have}, '0')"
        return f"rpad({whole}, {digits}, '0')"

    def zone(self, *, colon: bool, seconds: bool = False) -> str:
        sign = "-" if self.offset < 0 else "+"
        hours, rest = divmod(abs(self.offset), 3_600)
        separator = ":" if colon else ""
        shown = f"{sign}{hours:02}{separator}{rest // 60:02}"
        return quoted(shown + (f"{separator}{rest % 60:02}" if seconds else ""))


def _floor_div(sql: str, divisor: int) -> str:
    return f"(try_subtract({sql}, pmod({sql}, {divisor}L)) div {divisor}L)"


def _exact_seconds(time: str, unit: str) -> str:
    return time if unit == "second" else _floor_div(time, _UNITS[unit])


_PARTS: Final[dict[str, Callable[[_Moment], str]]] = {
    "%Y": lambda at: at.part("year"),
    "%m": lambda at: at.part("month"),
    "%d": lambda at: at.part("day"),
    "%H": lambda at: at.of_day(3_600, 86_400),
    "%M": lambda at: at.of_day(60, 3_600),
    "%S": lambda at: at.of_day(1, 60),
    "%N": lambda at: at.fraction(9),
    "%9N": lambda at: at.fraction(9),
    "%6N": lambda at: at.fraction(6),
    "%3N": lambda at: at.fraction(3),
    "%z": lambda at: at.zone(colon=False),
    "%:z": lambda at: at.zone(colon=True),
    "%::z": lambda at: at.zone(colon=True, seconds=True),
    "%%": lambda _at: "'%'",
}
_READ: Final = {
    "%Y": "([0-9]{4})",
    "%m": "([0-9]{2})",
    "%d": "([0-9]{2})",
    "%H": "([01][0-9]|2[0-3])",
    "%M": "([0-5][0-9])",
    "%S": "([0-5][0-9])",
    "%N": "([0-9]{1,9})",
    "%9N": "([0-9]{9})",
    "%6N": "([0-9]{6})",
    "%3N": "([0-9]{3})",
    "%z": "([+-][0-9]{4})",
    "%:z": "([+-][0-9]{2}:[0-9]{2})",
    "%::z": "([+-][0-9]{2}:[0-9]{2}:[0-9]{2})",
}


def _directives(arguments: Sequence[Value], index: int) -> list[str]:
    written = literal_text(arguments, index, "the format")
    return re.findall(r"%(?:::?z|[369]?N|.)|[^%]+|%", written, re.DOTALL)


def _rfc3339(time: str, unit: str) -> Value:
    at = _Moment(time, unit, 0)
    parts = [at.date(), "'T'", at.of_day(3_600, 86_400), "':'", at.of_day(60, 3_600), "':'"]
    parts.append(at.of_day(1, 60))
    if _DIGITS[unit]:
        parts += ["'.'", at.fraction(_DIGITS[unit])]
    parts.append("'+00:00'")
    return text(_in_range(at, f"concat({', '.join(parts)})"))


def _in_range(at: _Moment, sql: str) -> str:
    low = f"{at.seconds} >= {_signed(_FIRST_SECOND)}"
    return f"IF({low} AND {at.seconds} <= {_LAST_SECOND}L, {sql}, NULL)"


def _now_rfc3339(arguments: Sequence[Value], context: CallContext) -> Value:
    unit = _unit(arguments, 0)
    return _rfc3339(_now(context, unit), unit)


def _unix_ts_to_rfc3339(arguments: Sequence[Value], _context: CallContext) -> Value:
    return _rfc3339(as_integer(arguments[0]), _unit(arguments, 1))


def _rfc3339_to_unix_ts(arguments: Sequence[Value], _context: CallContext) -> Value:
    unit = _unit(arguments, 1)
    written = as_text(arguments[0])
    # T and Z may be small letters there, to Spark they may not.
    micros = f"unix_micros(try_cast(upper({written}) AS TIMESTAMP))"
    if unit == "nanosecond":
        # Spark reads six digits of a fraction, cut and not rounded.
        digits = f"regexp_extract({written}, '[.][0-9]{{6}}([0-9]+)', 1)"
        rest = f"CAST(rpad({digits}, 3, '0') AS BIGINT)"
        time = f"try_add(try_multiply({micros}, 1000L), {rest})"
    else:
        time = _floor_div(micros, 1_000_000 // _UNITS[unit]) if unit != "microsecond" else micros
    return integer(f"IF({written} RLIKE {_RFC3339}, {time}, NULL)")


def _now_timestamp(arguments: Sequence[Value], context: CallContext) -> Value:
    return integer(_now(context, _unit(arguments, 0)))


def _milliseconds(_arguments: Sequence[Value], context: CallContext) -> Value:
    return integer(_now(context, "millisecond"))


def _format_date(arguments: Sequence[Value], context: CallContext) -> Value:
    unit = _unit(arguments, 0)
    offset = _offset(arguments, 1)
    time = as_integer(arguments[3]) if len(arguments) > 3 else _now(context, unit)
    at = _Moment(time, unit, offset)
    parts = []
    for directive in _directives(arguments, 2):
        if not directive.startswith("%"):
            parts.append(quoted(directive))
        elif directive in _PARTS:
            parts.append(_PARTS[directive](at))
        else:
            raise Unusable(f"the format's {directive} is not supported", 2)
    return text(_in_range(at, f"concat({', '.join(parts)})") if parts else "''")


def _date_to_unix_ts(arguments: Sequence[Value], _context: CallContext) -> Value:
    unit = _unit(arguments, 0)
    offset = _offset(arguments, 1) if len(arguments) > 3 else 0
    groups, regex = _reading(arguments, len(arguments) - 2)
    written = as_text(arguments[-1])

    def taken(directive: str) -> str:
        return f"regexp_extract({written}, {regex}, {groups[directive]})"

    date = f"try_cast(concat({taken('%Y')}, '-', {taken('%m')}, '-', {taken('%d')}) AS DATE)"
    terms = [f"unix_date({date}) * 86400L"]
    for directive, factor in (("%H", 3_600), ("%M", 60), ("%S", 1)):
        if directive in groups:
            terms.append(f"try_cast({taken(directive)} AS BIGINT) * {factor}L")
    zone = next((one for one in ("%z", "%:z", "%::z") if one in groups), None)
    if zone is not None:
        terms.append(_minus_zone(taken(zone), has_seconds=zone == "%::z"))
    elif offset:
        terms.append(_signed(-offset))
    total = f"try_multiply({' + '.join(terms)}, {_UNITS[unit]}L)"
    fraction = next((one for one in ("%N", "%9N", "%6N", "%3N") if one in groups), None)
    if fraction is not None and _DIGITS[unit]:
        digits = f"left(rpad({taken(fraction)}, 9, '0'), {_DIGITS[unit]})"
        total = f"try_add({total}, try_cast({digits} AS BIGINT))"
    return integer(f"IF({written} RLIKE {regex}, {total}, NULL)")


def _reading(arguments: Sequence[Value], index: int) -> tuple[dict[str, int], str]:
    """Return the group of each directive of a format, and the regular expression of all."""
    groups: dict[str, int] = {}
    pattern = []
    for directive in _directives(arguments, index):
        if not directive.startswith("%"):
            pattern.append(re.escape(directive))
        elif directive in _READ and directive not in groups:
            groups[directive] = len(groups) + 1
            pattern.append(_READ[directive])
        elif directive == "%%":
            pattern.append("%")
        else:
            problem = f"the format's {directive} is not supported, or given twice"
            raise Unusable(problem, index)
    if not {"%Y", "%m", "%d"} <= groups.keys():
        raise Unusable("the format needs %Y, %m and %d", index)
    return groups, quoted(rf"\A{''.join(pattern)}\z")


def _minus_zone(written: str, *, has_seconds: bool) -> str:
    """Return the seconds west of Greenwich of an offset, as `+02:00`."""
    digits = f"replace({written}, ':', '')"
    parts = ((2, 3_600), (4, 60), (6, 1)) if has_seconds else ((2, 3_600), (4, 60))
    terms = [f"try_cast(substring({digits}, {at}, 2) AS BIGINT) * {size}L" for at, size in parts]
    seconds = f"({' + '.join(terms)})"
    return f"IF(startswith({digits}, '-'), {seconds}, - {seconds})"


def _offset_seconds(arguments: Sequence[Value], _context: CallContext) -> Value:
    return integer(_signed(_offset(arguments, 0)))


FUNCTIONS: Final = {
    "now_rfc3339": Function(0, 1, _now_rfc3339),
    "unix_ts_to_rfc3339": Function(1, 2, _unix_ts_to_rfc3339),
    "rfc3339_to_unix_ts": Function(1, 2, _rfc3339_to_unix_ts),
    "now_timestamp": Function(0, 1, _now_timestamp),
    "timestamp": Function(0, 0, _milliseconds),
    "format_date": Function(3, 4, _format_date),
    "date_to_unix_ts": Function(3, 4, _date_to_unix_ts),
    "timezone_to_second": Function(1, 1, _offset_seconds),
    "timezone_to_offset_seconds": Function(1, 1, _offset_seconds),
}
