"""Patterns of topics and client identifiers, in which `%c`, `%u` and `%{name}` stand for a client.

The name of a client is only text: it is no wildcard and makes no level. A name that
could be either (`+`, `#`, `a/b`, as the first level `$a`), and one that is missing or empty, makes
a pattern that nothing matches. So it is with attributes, `%{site}` say, that its login has brought.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from mqlake.errors import InvalidTopic
from mqlake.topics.names import SEPARATOR, SHARE_PREFIX, validate_topic_filter

_PLACEHOLDER: Final = re.compile(r"%(\{[^}]*\}?|.?)", re.DOTALL)
_ATTRIBUTE: Final = re.compile(r"\{[A-Za-z0-9_.-]{1,63}\}")
_NO_LEVEL: Final = re.compile(r"[/+#\0]")

CLIENT_ID: Final = "c"
USER_NAME: Final = "u"
ANY_END: Final = "*"

Attributes = Mapping[str, str]
"""Attributes of a client, by name."""
NO_ATTRIBUTES: Final[Attributes] = {}


class TopicPattern:
    """A topic filter, perhaps with placeholders; `%%` is a percent sign.

    Attributes:
        superset: A plain topic filter that matches all that it matches, for any client.
        is_plain: It is the same for everybody: that filter.

    Raises:
        ValueError: It is none.
    """

    __slots__ = ("_levels", "_places", "_text", "is_plain", "superset")

    def __init__(self, text: str) -> None:
        if text.startswith(SHARE_PREFIX):
            raise ValueError(f"{text!r}: name the topic filter without {SHARE_PREFIX}<name>/")
        self._text = text
        self._levels = tuple(_Template(level, "cu") for level in text.split(SEPARATOR))
        self._places = tuple(
            (depth, level) for depth, level in enumerate(self._levels) if level.has_placeholder
        )
        self.is_plain = not self._places
        nobody = "", None, NO_ATTRIBUTES
        self.superset = SEPARATOR.join(
            "+" if level.has_placeholder else level.fill(*nobody) or "" for level in self._levels
        )
        try:
            validate_topic_filter(self.superset)
        except InvalidTopic as exc:
            raise ValueError(f"{text!r}: {exc}") from exc
        if any(level.has_wildcard for _, level in self._places):
            raise ValueError(f"{text!r}: a wildcard shares its level")

    def __str__(self) -> str:
        return self._text

    def of(
        self, client_id: str, username: str | None, attributes: Attributes = NO_ATTRIBUTES
    ) -> str | None:
        """Return the topic filter that it is for a client; None: nothing matches."""
        if self.is_plain:
            return self.superset
        levels = []
        for level in self._levels:
            filled = level.fill(client_id, username, attributes)
            if filled is None or (level.has_placeholder and _NO_LEVEL.search(filled)):
                return None
            levels.append(filled)
        if levels[0].startswith("$") and self._levels[0].has_placeholder:
            return None
        return SEPARATOR.join(levels)

    def fits(
        self,
        names: Sequence[str],
        client_id: str,
        username: str | None,
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> bool:
        """Tell whether a topic name, split, that its superset matches is matched for a client.

        No level of a topic name could be more than text, and `superset` meets no leading `$`.
        """
        return all(
            names[depth] == level.fill(client_id, username, attributes)
            for depth, level in self._places
        )


class ClientIdPattern:
    """A client identifier, or with a `*` at its end all that begin so; perhaps with placeholders.

    Raises:
        ValueError: It is none.
    """

    __slots__ = ("_is_beginning", "_template", "_text")

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("an empty client identifier: * is for all")
        self._text = text
        self._is_beginning = text.endswith(ANY_END)
        self._template = _Template(text.removesuffix(ANY_END), "u")

    def __str__(self) -> str:
        return self._text

    def matches(
        self, client_id: str, username: str | None, attributes: Attributes = NO_ATTRIBUTES
    ) -> bool:
        known = self._template.fill(client_id, username, attributes)
        if known is None:
            return False
        return client_id.startswith(known) if self._is_beginning else client_id == known


class _Template:
    """Text with placeholders."""

    __slots__ = ("_is_client_id", "_parts", "has_placeholder", "has_wildcard")

    def __init__(self, text: str, allowed: str) -> None:
        parts: list[tuple[str, str]] = []  # (text, placeholder behind it)
        begin, plain = 0, ""
        for found in _PLACEHOLDER.finditer(text):
            plain += text[begin : found.start()]
            begin = found.end()
            if found[1] == "%":
                plain += "%"
            elif (found[1] and found[1] in allowed) or _ATTRIBUTE.fullmatch(found[1]):
                parts.append((plain, found[1]))
                plain = ""
            else:
                known = ", ".join(f"%{one}" for one in allowed)
                raise ValueError(f"{text!r} has {found[0]!r}, expected {known}, %{{name}} or %%")
        parts.append((plain + text[begin:], ""))
        self._parts = tuple(parts)
        self.has_placeholder = len(parts) > 1
        self._is_client_id = self._parts == (("", CLIENT_ID), ("", ""))
        self.has_wildcard = any("+" in plain or "#" in plain for plain, _ in parts)

    def fill(self, client_id: str, username: str | None, attributes: Attributes) -> str | None:
        """Return the text for a client; None: a name is missing."""
        if not self.has_placeholder:
            return self._parts[0][0]
        if self._is_client_id:
            return client_id or None
        filled = ""
        for plain, placeholder in self._parts:
            filled += plain
            if placeholder:
                if placeholder == CLIENT_ID:
                    name: str | None = client_id
                elif placeholder == USER_NAME:
                    name = username
                else:
                    name = attributes.get(placeholder[1:-1])
                if not name:
                    return None
                filled += name
        return filled
