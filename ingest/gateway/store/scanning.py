"""Walk through sorted topic names and stop only where a filter can match.

Topics sort by their UTF-8 bytes, which is the order of Python's strings and of SQLite's index. All
topics below `a/b` lie together between `a/b/` and `a/b0` (`0` follows `/`), but characters smaller
than `/` stand between `a/b` itself and them: `a/b`, `a/b!`, `a/b/c`, `a/b0`.
"""

from typing import Final

from mqlake.topics.names import SEPARATOR

_AFTER_SEPARATOR: Final = chr(ord(SEPARATOR) + 1)
_AFTER_DOLLAR: Final = chr(ord("$") + 1)


def just_after(topic_name: str) -> str:
    """Return the position behind a topic: U+0000 stands in no topic name."""
    return topic_name + "\0"


class FilterScan:
    """One valid, plain topic filter against topic names in ascending order."""

    __slots__ = ("_last", "_levels", "_wildcard_first", "start")

    def __init__(self, topic_filter: str) -> None:
        self._levels = topic_filter.split(SEPARATOR)
        self._last = len(self._levels) - 1
        self._wildcard_first = self._levels[0] in {"+", "#"}
        literal: list[str] = []
        for level in self._levels:
            if level in {"+", "#"}:
                break
            literal.append(level)
        self.start: str = SEPARATOR.join(literal)
        """First topic to look at: none before it can match."""

    def seek(self, topic_name: str) -> str | None:
        """Return the first position, from this topic on, at which the filter can match.

        That is `topic_name` itself when it matches; None when nothing from here on can.
        """
        if self._wildcard_first and topic_name.startswith("$"):
            return _AFTER_DOLLAR  # [MQTT5-4.7.2-1] [MQTT311-4.7.2-1]
        names = topic_name.split(SEPARATOR)
        depth = len(names)
        for at, level in enumerate(self._levels):
            if level == "#":
                return topic_name
            if at == depth:
                return just_after(topic_name)
            if level not in {"+", names[at]}:
                return self._seek_level(topic_name, names[:at], level, is_last=at == self._last)
        if depth == self._last + 1:
            return topic_name
        return SEPARATOR.join(names[: self._last + 1]) + _AFTER_SEPARATOR

    def _seek_level(
        self, topic_name: str, above: list[str], level: str, *, is_last: bool
    ) -> str | None:
        """Return where, from this topic on, a level can stand below the levels `above`."""
        prefix = SEPARATOR.join((*above, ""))
        wanted = prefix + level
        if topic_name < wanted:
            return wanted
        if not is_last and topic_name < wanted + SEPARATOR:
            return wanted + SEPARATOR
        return prefix[:-1] + _AFTER_SEPARATOR if prefix else None
