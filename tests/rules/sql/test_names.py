"""Names compared as Spark does, which is `String.equalsIgnoreCase` of Java."""

from string import printable

from rules.sql.names import folded
from tests.cases import case


def test_what_spark_takes_for_the_same_is_the_same() -> None:
    for one, other in (
        ("user", "USER"),
        ("u\u017fer", "user"),  # LATIN SMALL LETTER LONG S
        ("ran\u212a", "rank"),  # KELVIN SIGN
        ("t\u0130me", "time"),  # capital I with a dot
        ("t\u0131me", "time"),  # small i without one
        ("GR\u00d6\u00dfE", "gr\u00f6\u00dfe"),
        ("\u03c3", "\u03c2"),  # both are small letters of U+03A3
    ):
        with case(ascii(one)):
            assert folded(one) == folded(other)
            assert folded(folded(one)) == folded(one)


def test_what_spark_tells_apart_stays_apart() -> None:
    for one, other in (("stra\u00dfe", "strasse"), ("\ufb01", "fi"), ("\uff55", "u"), ("a", "a ")):
        with case(ascii(one)):
            assert folded(one) != folded(other)


def test_ascii_is_as_it_was() -> None:
    assert folded(printable) == printable.lower()


def test_no_other_character_is_taken_for_one_of_ascii() -> None:
    found = {chr(code) for code in range(128, 0x110000) if folded(chr(code)).isascii()}
    assert found == {"\u0130", "\u0131", "\u017f", "\u212a"}
