"""Places of Spark's errors in the user's text."""

import re
from typing import Final

from api.sql.dialect import PLACE

_POSITION: Final = re.compile(r"line 1,? pos(?:ition)? (\d+)")


def place_of(error: Exception, sql: str) -> int | None:
    """Return the offset in the user's text; None when Spark does not tell.

    Args:
        error: As the client library raises it.
        sql: As Spark got it, one line.
    """
    found = _offset(error)
    if found is None:
        return None
    # The text that Spark marks begins with a name, or some characters before one.
    before = None
    for marked in PLACE.finditer(sql):
        if marked.start() > found:
            return int(marked[1]) if before is None else before
        before = int(marked[1])
    return before


def place_of_name(detail: str, text: str) -> int | None:
    """Return the offset of the name that an error without a place speaks of, if it is certain."""
    for name in re.findall(r"[`\"]([A-Za-z_]\w*)[`\"]", detail):
        places = [found.start() for found in re.finditer(rf"\b{name}\b", text)]
        if len(places) == 1:
            return places[0]
    return None


def _offset(error: Exception) -> int | None:
    for context in getattr(error, "getQueryContext", list)() or ():
        try:
            start = int(context.startIndex())
        except (AttributeError, TypeError, ValueError):
            continue
        if start >= 0:
            return start
    position = _POSITION.search(str(error))
    return int(position[1]) if position else None
