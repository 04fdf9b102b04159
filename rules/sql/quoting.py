"""Text of users as literals of Spark SQL, and names: the only way they get into a statement."""

import re
from collections.abc import Sequence
from typing import Final

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ESCAPED: Final = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quoted(text: str) -> str:
    r"""Return a string literal of Spark SQL.

    A dollar sign is escaped too: Spark replaces `${…}` anywhere in a statement by configuration and
    environment. So are control characters and the separators some readers take for line ends.
    """
    return "'" + "".join(map(_escaped, text)) + "'"


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _ESCAPED:
        return _ESCAPED[character]
    if character == "$" or code < 0x20 or 0x7F <= code < 0xA0 or 0x2028 <= code <= 0x2029:
        return f"\\u{code:04x}"
    if 0xD800 <= code <= 0xDFFF:  # a lone surrogate has no UTF-8
        return "\\ufffd"
    return character


def variant_path(segments: Sequence[str | int]) -> str:
    """Return the path of a field for `variant_get`, as a string literal; see `is_expressible`."""
    parts = ["$"]
    for segment in segments:
        if isinstance(segment, int):
            parts.append(f"[{segment}]")
        elif _PLAIN_KEY.match(segment):
            parts.append(f".{segment}")
        elif "'" not in segment:
            parts.append(f"['{segment}']")
        else:
            parts.append(f'["{segment}"]')
    return quoted("".join(parts))


def is_expressible(segment: str | int) -> bool:
    """Tell whether a path of Spark's can hold the segment: not both kinds of quotes."""
    return isinstance(segment, int) or not ("'" in segment and '"' in segment)


def quoted_name(name: str) -> str:
    """Return a name in Spark SQL, with any characters."""
    return f"`{name.replace('`', '``')}`"
