"""What holds for every text and every rule."""

import random
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rules.errors import RuleError
from rules.language.compiler import compile_rule
from rules.language.limits import DEFAULT_LIMITS
from rules.language.parsing import parse
from rules.sql.patterns import InvalidPattern, Regex, topic_pattern
from rules.sql.quoting import quoted, variant_path
from tests.rules.language import writing
from tests.rules.language.cases import read_expressions, read_statements
from tests.rules.language.evaluation import expression_of
from tests.rules.language.generating import expression

WORDS = """
SELECT FROM WHERE AND OR NOT IN IS NULL LIKE RLIKE BETWEEN CASE WHEN THEN ELSE END AS DIV MOD
FOREACH DO INCASE TRUE FALSE CAST ( ) [ ] , . * + - / % = <> != < > <= >= =~ || ; -- /* */
payload payload.a.b payload.items[1].c clientid topic(2) upper(topic) item qos 'a''b' "t/#"
`x` 1 2.5 -1 1e3 'a/+' $events :: -> => ${x} {{ }} \\ ' " GROUP BY UNION x payload.a[1..2]
count(*) sum(payload.x) first( DISTINCT FILTER(WHERE HAVING JOIN LEFT ON WITHIN LATENESS INTERVAL
tumble(timestamp,'1_minute') hop( session( lateness absent('1_minute') debounce( n_of_m( "u" a.x b.x
""".split()  # noqa: SIM905


def compiles(sql: str) -> bool:
    error = None
    try:
        compile_rule(sql)
    except RuleError as exc:
        error = exc
    if error is None:
        return True
    assert error.problem
    if error.line is not None:
        assert error.column is not None
        assert error.line <= sql.count("\n") + 1
    return False


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
@example("SELECT")
@example("\\")
@example("SELECT 'a' FROM '\ud800'")
def test_any_text_compiles_or_is_refused(text: str) -> None:
    compiles(text)
    compiles(f"SELECT {text} FROM 't'")
    compiles(f"SELECT topic FROM {text}")
    compiles(f"SELECT topic FROM 't' WHERE {text}")


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join))
def test_any_words_compile_or_are_refused(text: str) -> None:
    compiles(text)
    compiles(f"SELECT {text} FROM 't'")
    compiles(f"SELECT count(*) FROM 't' {text}".replace("_", " "))
    window = "tumble(timestamp, '1 minute')"
    compiles(f"SELECT count(*) AS n FROM 't' GROUP BY {window} HAVING {text}")
    compiles(f"SELECT a.x FROM 't' AS a JOIN 'u' AS b ON a.qos = b.qos AND {text} WITHIN '1 s'")


@settings(max_examples=500, deadline=None)
@given(st.integers(min_value=0))
def test_any_expression_compiles_or_is_refused(seed: int) -> None:
    compiles(f"SELECT {expression(random.Random(seed), 4)} AS x FROM 't'")


def test_what_is_written_again_parses_to_the_same() -> None:
    statements = [sql for sql, _, _ in (*read_expressions(), *read_statements())]
    for sql in statements:
        tree = parse(sql, DEFAULT_LIMITS)
        written = writing.statement(tree)
        again = parse(written, DEFAULT_LIMITS)
        assert writing.statement(again) == written
        if "AS" in sql:
            assert strip_names(expression_of(compile_rule(written))) == strip_names(
                expression_of(compile_rule(sql))
            )


def strip_names(expression: str) -> str:
    """Leave out what shows the rule's own text: names without AS, seeds, error messages."""
    expression = re.sub(r"raise_error\('(?:[^'\\]|\\.)*'\)", "raise_error('')", expression)
    return re.sub(r"log_offset, [0-9]+L", "log_offset", expression)


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_a_literal_ends_where_it_ends(text: str) -> None:
    literal = quoted(text)
    inner = literal[1:-1]
    assert literal[0] == literal[-1] == "'"
    assert not re.search(r"(?<!\\)(?:\\\\)*'", inner)
    assert not re.search(r"[$\x00-\x1f]", literal)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(), max_size=4))
def test_a_path_is_one_literal(keys: list[str]) -> None:
    assert not re.search(r"(?<!\\)(?:\\\\)*'", variant_path(keys)[1:-1])


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab.*+?|()[]{}^$\\d1,-", max_size=12))
def test_any_pattern_is_understood_or_refused(pattern: str) -> None:
    try:
        regex = Regex(pattern, 512)
    except InvalidPattern:
        return
    re.compile(pattern)
    assert 1 <= regex.text_characters <= 1_000_000


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20))
def test_any_topic_filter_becomes_a_pattern_or_is_refused(text: str) -> None:
    try:
        assert topic_pattern(text).startswith("'(?s)")
    except InvalidPattern:
        return
