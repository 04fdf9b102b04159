"""Bounds on the cost of a query, where its arguments say how much Spark has to do.

Spark writes out the columns that a `*` names, has as many tasks as `range` says, copies a row for
each window it is in and each set it is grouped by, and keeps the values that an aggregate needs.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqlglot import exp

from api.sql.dialect import is_text
from rules.sql.durations import InvalidDuration, milliseconds

MOST_WINDOWS: Final = 100
"""That one row is in, as in rules."""
MOST_SETS: Final = 64
"""That the rows are grouped by."""

MOST_STARS: Final = 64
"""Factor by which all the `*` of a query multiply the columns of its tables."""
MOST_PERCENTILES: Final = 16
"""Each keeps up to 50,000 values for a group before it makes them fewer."""
MOST_POSITION: Final = 10_000
"""Position for `array_insert`, which fills the array up to there."""
MOST_DECIMALS: Final = 100

_DIRECTIVE: Final = re.compile(r"%([^%a-zA-Z]*)[%a-zA-Z]")
"""Directive of a format: flags, width and precision, and the conversion."""
_PERCENTILES: Final = frozenset(["approx_percentile", "percentile_approx"])
_MANY: Final = (exp.Cube, exp.Rollup, exp.GroupingSets)

Problem = str | None


def call_problem(name: str, arguments: Sequence[exp.Expr]) -> Problem:
    """Return why a call of a function costs too much, None when it does not."""
    check = _CALLS.get(name)
    return None if check is None else check(arguments)


def query_problem(query: exp.Expr) -> Problem:
    """Return why a whole query costs too much, None when it does not."""
    times = 1
    for select in query.find_all(exp.Select):
        times *= max(1, _stars_in(select))
    if times > MOST_STARS:
        return f"its * make columns {times} times as many, at most {MOST_STARS} times may be"
    calls = sum(call.name.lower() in _PERCENTILES for call in query.find_all(exp.Anonymous))
    if calls > MOST_PERCENTILES:
        return f"it has {calls} calls of approx_percentile, at most {MOST_PERCENTILES} may be"
    return None


def _stars_in(select: exp.Select) -> int:
    """Count stars; one that names no table is one of each table."""
    tables = 1 + len(select.args.get("joins") or ()) + len(select.args.get("laterals") or ())
    count = 0
    for star in select.find_all(exp.Star):
        if star.find_ancestor(exp.Select) is not select:
            continue
        parent = star.parent
        if isinstance(parent, exp.Anonymous) and parent.name.lower() == "count":
            continue
        count += 1 if isinstance(parent, exp.Column | exp.Dot) else tables
    return count


def sets_problem(group: exp.Group) -> Problem:
    """Return why a GROUP BY costs too much, None when it does not."""
    plain = [one for one in group.expressions if not isinstance(one, _MANY)]
    sets = 1
    for one in group.expressions:
        sets *= _sets_in(one)
    if group.args.get("cube"):  # WITH CUBE, of all that is there
        sets *= 2 ** min(len(plain), 64)
    if group.args.get("rollup"):
        sets *= 1 + len(plain)
    for listed in group.args.get("grouping_sets") or ():
        sets *= _sets_in(listed)
    if sets <= MOST_SETS:
        return None
    return f"the rows are grouped by {sets} sets of expressions, at most {MOST_SETS} may be"


def _sets_in(listed: exp.Expr) -> int:
    if isinstance(listed, exp.Cube):
        return 1 << min(len(listed.expressions), 64)
    if isinstance(listed, exp.Rollup):
        return 1 + len(listed.expressions)
    if isinstance(listed, exp.GroupingSets):
        return sum(map(_sets_in, listed.expressions))
    return 1


def _window(arguments: Sequence[exp.Expr]) -> Problem:
    lengths = [found for one in arguments[1:] if (found := _milliseconds(one)) is not None]
    if len(lengths) < len(arguments) - 1:
        return "the lengths of window are written out, as '10 minutes'"
    if len(lengths) < 2:
        return None
    length, distance = lengths[:2]
    if distance and length <= distance * MOST_WINDOWS:
        return None
    return f"a row is in more than {MOST_WINDOWS} windows: they are too long for their distance"


def _session_window(arguments: Sequence[exp.Expr]) -> Problem:
    if len(arguments) == 2 and _milliseconds(arguments[1]) is not None:
        return None
    return "it takes a time and a gap that is written out, as '10 minutes'"


def _milliseconds(argument: exp.Expr) -> int | None:
    if isinstance(argument, exp.Interval):
        text = f"{argument.this.name if argument.this else ''} {argument.args.get('unit') or ''}"
    elif isinstance(argument, exp.Literal | exp.RawString):
        text = str(argument.this)
    else:
        return None
    try:
        return milliseconds(text)
    except InvalidDuration:
        return None


def _number_from(place: int, low: float, high: float, what: str) -> Callable[..., Problem]:
    def check(arguments: Sequence[exp.Expr]) -> Problem:
        if len(arguments) <= place:
            return None
        given = arguments[place]
        text = str(given.this) if isinstance(given, exp.Literal) and not given.is_string else ""
        if re.fullmatch(r"[0-9]*\.?[0-9]+", text) and low <= float(text) <= high:
            return None
        return f"{what} is a number written out, from {low:g} to {high:g}"

    return check


def _at_most(count: int) -> Callable[..., Problem]:
    def check(arguments: Sequence[exp.Expr]) -> Problem:
        if len(arguments) <= count:
            return None
        return f"it has {len(arguments)} arguments, at most {count} may be"

    return check


def _replacement(arguments: Sequence[exp.Expr]) -> Problem:
    if len(arguments) < 3 or is_text(arguments[2]):
        return None
    return "the replacement has to be written out"


def _position(arguments: Sequence[exp.Expr]) -> Problem:
    if len(arguments) < 2:
        return None
    given = arguments[1]
    counted = given.this if isinstance(given, exp.Neg) else given
    return _number_from(0, 1, MOST_POSITION, "the position, from either end,")([counted])


def _format_number(arguments: Sequence[exp.Expr]) -> Problem:
    if len(arguments) > 1 and is_text(arguments[1]) and len(arguments[1].name) <= MOST_DECIMALS:
        return None
    what = "the number of decimals, or of characters of the format,"
    return _number_from(1, 0, MOST_DECIMALS, what)(arguments)


def _format(arguments: Sequence[exp.Expr]) -> Problem:
    if arguments and not is_text(arguments[0]):
        return "the format has to be written out"
    directives = _DIRECTIVE.findall(arguments[0].name) if arguments else ()
    if any(re.search("[0-9]{4}", one) for one in directives):
        return "widths and precisions of the format are numbers up to 999"
    return None


_ACCURACY: Final = _number_from(2, 1, 10_000, "the accuracy")
_CALLS: Final[Mapping[str, Callable[[Sequence[exp.Expr]], Problem]]] = {
    "window": _window,
    "session_window": _session_window,
    "approx_count_distinct": _number_from(1, 0.01, 1, "the error that is allowed"),
    "approx_percentile": _ACCURACY,
    "percentile_approx": _ACCURACY,
    "array_insert": _position,
    "format_number": _format_number,
    "format_string": _format,
    "printf": _format,
    "ntile": _number_from(0, 1, 100_000, "the number of buckets"),
    "stack": _number_from(0, 1, 1_000, "the number of rows"),
    "json_tuple": _at_most(50),
    "range": _at_most(3),  # the fourth is how many tasks there are
    "regexp_replace": _replacement,
}
