"""SASLprep (RFC 4013): one form for a user name or a password, however a client composes it."""

import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final

from mqlake.errors import MqlakeError

MAX_PREPARED_CHARACTERS: Final = 1024
"""Preparing takes a microsecond a character; clients may send 65,535 bytes of them."""

_PROHIBITED: Final[tuple[tuple[Callable[[str], bool], str], ...]] = (
    (stringprep.in_table_c12, "a space that is not ASCII"),
    (stringprep.in_table_c21_c22, "a control character"),
    (stringprep.in_table_c3, "a private use character"),
    (stringprep.in_table_c4, "a non-character"),
    (stringprep.in_table_c5, "a surrogate"),
    (stringprep.in_table_c6, "a character that is not plain text"),
    (stringprep.in_table_c7, "a character that composes others"),
    (stringprep.in_table_c8, "a character that changes the display"),
    (stringprep.in_table_c9, "a tagging character"),
    # RFC 4013 allows these in a query; stored names have none, so no query with one finds them.
    (stringprep.in_table_a1, "a character that Unicode 3.2 does not assign"),
)


class UnpreparableText(MqlakeError):  # noqa: N818 - it names the thing refused
    """A text that SASLprep does not allow; the message never shows it: it may be a password."""


def prepare(text: str, what: str) -> str:
    """Return the normal form of a user name or a password.

    Args:
        text: As the client or the user gives it.
        what: Its name in messages.

    Raises:
        UnpreparableText: If it is empty, too long, or holds characters that RFC 4013, 2.3 to 2.5
            forbids.
    """
    _check_length(text, what)
    if text.isascii() and text.isprintable():
        prepared = text  # which the steps below leave as it is
    else:
        mapped = (
            " " if stringprep.in_table_c12(character) else character
            for character in text
            if not stringprep.in_table_b1(character)
        )
        prepared = unicodedata.ucd_3_2_0.normalize("NFKC", "".join(mapped))
        _check_length(prepared, what)
        _check(prepared, what)
    if not prepared:
        raise UnpreparableText(f"the {what} is empty")
    return prepared


def _check_length(text: str, what: str) -> None:
    if len(text) > MAX_PREPARED_CHARACTERS:
        raise UnpreparableText(
            f"the {what} has {len(text)} characters, expected {MAX_PREPARED_CHARACTERS} at most"
        )


def _check(prepared: str, what: str) -> None:
    for character in prepared:
        for is_prohibited, kind in _PROHIBITED:
            if is_prohibited(character):
                raise UnpreparableText(f"the {what} holds {kind}")
    if any(map(stringprep.in_table_d1, prepared)):  # RFC 3454, 6
        if any(map(stringprep.in_table_d2, prepared)):
            raise UnpreparableText(f"the {what} mixes directions of writing")
        if not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])):
            raise UnpreparableText(f"the {what} begins or ends against its direction of writing")
