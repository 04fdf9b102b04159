r"""Patterns: LIKE, topic filters, and regular expressions that end in time.

Spark's regular expressions are Java's, which search by trying: some patterns take time exponential
in the text's length, many take a power of it. So a pattern is read here and written again from the
parts understood (no look-around, no back reference, no repeat of a repeat), and the text it is used
on may be as long as keeps the number of steps below about a hundred million; longer text fails the
rule for that message.
"""

import re
from re import _constants as code  # type: ignore[attr-defined, unused-ignore]
from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
from typing import Any, Final

from mqlake.errors import InvalidTopic
from mqlake.topics.names import validate_topic_filter
from rules.sql.names import folded
from rules.sql.quoting import quoted

_LONG_REPEAT: Final = 16
"""A repeat with more room than this between its bounds counts as unbounded."""

_MAX_REPEATS: Final = 3
_TEXT_CHARACTERS: Final = (1_000_000, 10_000, 800, 220)
"""The longest text by the number of unbounded repeats: n^(repeats + 1) / (repeats + 1)! steps."""

_MAX_BOUND: Final = 1_000

_CATEGORIES: Final = {
    code.CATEGORY_DIGIT: r"\d",
    code.CATEGORY_NOT_DIGIT: r"\D",
    code.CATEGORY_SPACE: r"\s",
    code.CATEGORY_NOT_SPACE: r"\S",
    code.CATEGORY_WORD: r"\w",
    code.CATEGORY_NOT_WORD: r"\W",
}
_PLACES: Final = {
    code.AT_BEGINNING: "^",
    code.AT_BEGINNING_STRING: r"\A",
    code.AT_END: "$",
    code.AT_END_STRING: r"\z",
    code.AT_BOUNDARY: r"\b",
    code.AT_NON_BOUNDARY: r"\B",
}
_FLAGS: Final = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}


class InvalidPattern(Exception):  # noqa: N818 - it names the thing refused
    """A pattern that is not one, or that might not end in time."""


class Regex:
    """A regular expression that was understood.

    Attributes:
        java: The same for Java, as a Spark SQL literal.
        groups: How many groups it has.
        text_characters: The longest text it may be used on.
    """

    def __init__(self, pattern: str, limit: int) -> None:
        if len(pattern) > limit:
            raise InvalidPattern(f"the regular expression has more than {limit} characters")
        try:
            parsed = parser.parse(pattern)
        except (re.error, Warning, OverflowError, RecursionError) as exc:
            raise InvalidPattern(f"not a regular expression: {exc}") from exc
        if parsed.state.groupdict:
            raise InvalidPattern("groups with names are not supported")
        self._repeats = 0
        unknown = parsed.state.flags & ~(re.UNICODE | re.IGNORECASE | re.MULTILINE | re.DOTALL)
        if unknown:
            raise InvalidPattern("of the flags only i, m and s are supported")
        flags = "".join(sign for flag, sign in _FLAGS.items() if parsed.state.flags & flag)
        body = self._sequence(parsed, is_repeated=False)
        if self._repeats > _MAX_REPEATS:
            raise InvalidPattern(f"more than {_MAX_REPEATS} unbounded repeats would take too long")
        self.java = quoted((f"(?{flags})" if flags else "") + body)
        self.groups = parsed.state.groups - 1
        is_anchored = bool(len(parsed)) and parsed[0][0] is code.AT and not flags.count("m")
        self.text_characters = _TEXT_CHARACTERS[max(self._repeats - is_anchored, 0)]

    def _sequence(self, items: Any, *, is_repeated: bool) -> str:
        return "".join(self._one(kind, value, is_repeated) for kind, value in items)

    def _one(self, kind: Any, value: Any, is_repeated: bool) -> str:
        if kind is code.LITERAL:
            return _character(value)
        if kind is code.NOT_LITERAL:
            return f"[^{_character(value)}]"
        if kind is code.ANY:
            return "."
        if kind is code.AT and value in _PLACES:
            return _PLACES[value]
        if kind is code.IN:
            return _set(value)
        if kind is code.SUBPATTERN:
            group, added, removed, inner = value
            if added or removed:
                raise InvalidPattern("flags inside a regular expression are not supported")
            body = self._sequence(inner, is_repeated=is_repeated)
            return f"(?:{body})" if group is None else f"({body})"
        if kind is code.BRANCH:
            branches = [self._sequence(branch, is_repeated=is_repeated) for branch in value[1]]
            if is_repeated and not _are_distinct(value[1]):
                raise InvalidPattern(
                    "alternatives under a repeat must begin with different characters"
                )
            return f"(?:{'|'.join(branches)})"
        if kind in (code.MAX_REPEAT, code.MIN_REPEAT):
            return self._repeat(kind, value, is_repeated)
        raise InvalidPattern("look-around, back references and conditions are not supported")

    def _repeat(self, kind: Any, value: Any, is_repeated: bool) -> str:
        low, high, inner = value
        is_unbounded = high is code.MAXREPEAT or high - low > _LONG_REPEAT
        if low > _MAX_BOUND or (high is not code.MAXREPEAT and high > _MAX_BOUND):
            raise InvalidPattern(f"a repeat of more than {_MAX_BOUND} times is not supported")
        if is_repeated and not (low, high) == (0, 1) and low != high:
            raise InvalidPattern("a repeat inside a repeat is not supported")
        self._repeats += is_unbounded
        is_loop = is_repeated or high is code.MAXREPEAT or high > 1
        body = self._sequence(inner, is_repeated=is_loop)
        upper = "" if high is code.MAXREPEAT else str(high)
        return f"(?:{body}){{{low},{upper}}}" + ("?" if kind is code.MIN_REPEAT else "")


def like(pattern: str, escape: str | None = None) -> str:
    """Return a pattern of LIKE as Spark has it without ESCAPE, where a backslash is one.

    Args:
        pattern: With `%` and `_`.
        escape: Makes the next `%` or `_`, or the next of its own, ordinary; None: nothing does.

    Raises:
        InvalidPattern: The escape is not one character, or stands before another one.
    """
    if escape is not None and len(escape) != 1:
        raise InvalidPattern(f"ESCAPE takes one character, these are {len(escape)}")
    written, signs = [], iter(pattern)
    for sign in signs:
        if sign == escape:
            sign = next(signs, "")
            if sign not in ("%", "_", escape):
                raise InvalidPattern(
                    f"in the pattern of LIKE {escape} stands before %, _ or {escape}, "
                    f"here it is before {sign or 'nothing'}"
                )
            written.append(f"\\{sign}" if sign in "%_\\" else sign)
        else:
            written.append("\\\\" if sign == "\\" else sign)
    return "".join(written)


def exactly(written: str) -> str:
    """Return a regular expression that finds a text as it stands, a Spark SQL literal."""
    return quoted("".join(_character(ord(sign)) for sign in written))


def any_of(characters: str) -> str:
    """Return a regular expression that finds one of some characters, a Spark SQL literal."""
    return quoted(f"[{''.join(_character(ord(sign)) for sign in characters)}]")


def topic_pattern(topic_filter: str) -> str:
    """Return a topic filter as a regular expression, a Spark SQL literal.

    Raises:
        InvalidPattern: It is not a topic filter.
    """
    try:
        validate_topic_filter(topic_filter)
    except InvalidTopic as exc:
        raise InvalidPattern(f"not a topic filter: {exc}") from exc
    levels = topic_filter.split("/")
    # A wildcard at the beginning does not match topics that begin with $. [MQTT5-4.7.2-1]
    parts = [r"\A(?!\$)" if levels[0] in ("#", "+") else r"\A"]
    for position, level in enumerate(levels):
        if level == "#":
            parts.append("(?:/.*)?" if position else ".*")
            break
        parts.append("/" if position else "")
        parts.append("[^/]*" if level == "+" else "".join(_character(ord(sign)) for sign in level))
    return quoted(f"(?s){''.join(parts)}\\z")


def _character(value: int) -> str:
    sign = chr(value)
    if sign.isascii() and sign.isalnum():
        return sign
    return f"\\x{{{value:x}}}"


def _set(items: Any) -> str:
    parts = []
    for kind, value in items:
        if kind is code.NEGATE:
            parts.append("^")
        elif kind is code.LITERAL:
            parts.append(_character(value))
        elif kind is code.RANGE:
            parts.append(f"{_character(value[0])}-{_character(value[1])}")
        else:
            parts.append(_CATEGORIES[value])
    return f"[{''.join(parts)}]"


def _are_distinct(branches: Any) -> bool:
    firsts = set()
    for branch in branches:
        if not len(branch) or branch[0][0] is not code.LITERAL:
            return False
        firsts.add(folded(chr(branch[0][1])))
    return len(firsts) == len(branches)
