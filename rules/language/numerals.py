"""The texts that are numbers: one grammar, for every function, comparison and aggregate.

A number is written as in JSON, or with a plus sign, with zeros before it, with nothing on one side
of its point, or with blanks and line ends around it, as devices pad. Spark's casts take more:
`Infinity`, `NaN`, `0x1p3`, `1d`. As many digits as bound the time that a cast to DECIMAL takes.
"""

import math
import re
from typing import Final

from rules.sql.quoting import quoted

_WRITTEN: Final = r"[+-]?(?:\d{1,99}(?:\.\d{0,99})?|\.\d{1,99})(?:[eE][+-]?\d{1,3})?"
_PYTHON: Final = re.compile(rf"\s*({_WRITTEN})\s*", re.ASCII)
_SPARK: Final = quoted(rf"\A\s*({_WRITTEN})\s*\z")
_PLAIN_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")
INFINITY: Final = "double('Infinity')"


def read_number(written: str) -> int | float | None:
    """Return the number that a text is; None: it is none, or no double holds it."""
    found = _PYTHON.fullmatch(written)
    if found is None:
        return None
    if re.fullmatch("[+-]?[0-9]{1,18}", found[1]):
        return int(found[1])
    number = float(found[1])
    return number if math.isfinite(number) else None


def is_plain_integer(written: str) -> bool:
    """Tell whether a text is what a field that is the same number has as its text."""
    return _PLAIN_INTEGER.fullmatch(written) is not None


def number_in(text: str) -> str:
    """Return, in Spark SQL, what casts of a text are to read: empty where it is no number.

    The text of a field that is a number is one, too.
    """
    return f"regexp_extract({text}, {_SPARK}, 1)"


def is_number(text: str) -> str:
    """Return, in Spark SQL, the condition that a text is a number."""
    return f"({text} RLIKE {_SPARK})"


def is_finite(double: str) -> str:
    """Return, in Spark SQL, the condition that a DOUBLE is one that JSON has.

    NaN is above infinity to Spark; NULL stays NULL.
    """
    return f"(abs({double}) < {INFINITY})"
