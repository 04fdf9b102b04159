"""What every language of ours has of the front end, tried with one of a few words."""

import pytest
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from rules.sql.errors import SqlError, did_you_mean
from rules.sql.quoting import quoted_name
from rules.sql.reading import Reading


class Sum(Reading):
    """`1 + (2 + 3)`."""

    NOUN = "sum"
    DIALECT = Spark()
    PARSER = SparkParser
    KINDS = frozenset((exp.Add, exp.Paren, exp.Literal))
    ERROR = SqlError
    REFUSED = {TokenType.SEMICOLON: "a sum is one statement"}  # noqa: RUF012
    UNPARSED = "no sum near {!r}"
    UNLISTED = "{} is in no sum"
    QUOTES = "numbers have none"
    PASSES = (
        Reading.tokenize,
        Reading.check_tokens,
        Reading.check_depth,
        Reading.parse,
        Reading.check_kinds,
    )


def read(text: str) -> Sum:
    reading = Sum(text, characters=40, depth=3)
    reading.read()
    return reading


def test_a_statement_on_the_lists_becomes_a_tree() -> None:
    assert read("1 + (2 + 3);;").tree.sql() == "1 + (2 + 3)"


@pytest.mark.parametrize(
    ("text", "problem", "line", "column", "fragment"),
    [
        ("1 + " * 11, "the sum has 44 characters, at most 40 are allowed", None, None, ""),
        ("1 +\n\0", "the sum holds U+0000", 2, 1, "\0"),
        ("1 +\n 'a + 2", "a quote or a comment is not closed", 2, 2, "'a + 2"),
        ("1; 2", "a sum is one statement", 1, 2, ";"),
        ("1 + ((((1))))", "the sum is nested too deeply", 1, 8, "("),
        ("- - - - 1", "the sum is nested too deeply", 1, 7, "-"),
        ("1\n + (1", "no sum near '1'", 2, 5, "1"),
        ("1 +\n a", "COLUMN is in no sum", 2, 2, "a"),
        ("1 + (2 - 3)", "SUB is in no sum", 1, 6, "2"),
        ("NULL", "NULL is in no sum", None, None, ""),
        ("1 + NULL", "NULL is in no sum", 1, 1, "1"),
        ("concat(a - 2)", "CONCAT is in no sum", 1, 1, "concat"),
    ],
)
def test_anything_else_is_refused_where_it_is(
    text: str, problem: str, line: int | None, column: int | None, fragment: str
) -> None:
    with pytest.raises(SqlError) as caught:
        read(text)
    error = caught.value
    assert (error.problem, error.line, error.column) == (problem, line, column)
    assert error.fragment == fragment


@pytest.mark.parametrize(
    ("error", "problem"),
    [(KeyError("x"), "the sum does not parse"), (RecursionError(), "nested too deeply")],
)
def test_a_parser_that_breaks_refuses(
    monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(SparkParser, "parse", fail)
    with pytest.raises(SqlError, match=problem):
        read("1")


def test_what_the_parser_tries_twice_is_bounded_by_its_work_not_by_its_depth() -> None:
    def read_tried(text: str) -> None:
        reading = Sum(text, characters=10_000, depth=3)
        reading.tokenize()
        reading.check_tries()

    read_tried("date(" * 10 + "1" + ")" * 10)
    read_tried("(" * 100 + "1" + ")" * 100)
    read_tried("date(1) + " * 500)
    for text in ("date(" * 14, "ARRAY[" * 14, "int(" * 9 + "1 + " * 50):
        with pytest.raises(SqlError, match="the sum is nested too deeply"):
            read_tried(text)


def test_a_name_is_quoted_whatever_it_holds() -> None:
    assert quoted_name("a`b") == "`a``b`"


def test_the_name_most_like_an_unknown_one_is_asked_for() -> None:
    assert did_you_mean("uper", ["lower", "upper"]) == "did you mean upper?"
    assert did_you_mean("x", ["lower", "upper"]) == ""
