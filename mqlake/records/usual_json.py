"""Patterns of JSON as `compact_json` writes it: usual records are checked without parsing."""

from typing import Final

from mqlake.records.versions import OLDEST_READ, RECORD_VERSION


def list_of(item: bytes) -> bytes:
    """Return the pattern of a list of items of a pattern."""
    return rb"\[(?:%b(?:,%b)*)?\]" % (item, item)


VERSION: Final = b"[%d-%d]" % (OLDEST_READ, RECORD_VERSION)
NUMBER: Final = rb"(?:0|[1-9][0-9]{0,17})"
PACKET_ID: Final = (  # 1 to 65,535
    rb"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}"
    rb"|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
)
TEXT: Final = rb'"[ !#-\[\]-~]*"'
"""Text of ASCII that needs no escape."""
