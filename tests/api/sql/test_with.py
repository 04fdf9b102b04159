"""Where the names count that WITH gives, and that all others are tables of the tenant."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sqlglot import exp, parse_one

from api.sql.checking import check
from api.sql.errors import QueryError

INSIDE = [
    "WITH x AS (SELECT 1) SELECT * FROM X",
    "WITH x AS (SELECT 1), y AS (SELECT * FROM x) SELECT * FROM y JOIN x ON true",
    "WITH x AS (SELECT 1) SELECT 1 UNION SELECT * FROM x",
    "WITH x AS (SELECT 1) (SELECT * FROM x) UNION (SELECT * FROM (SELECT * FROM x))",
    "WITH x AS (SELECT 1 AS a) SELECT (SELECT a FROM x) FROM drops WHERE qos IN (SELECT a FROM x)",
    "WITH x AS (SELECT 1) SELECT * FROM drops d JOIN LATERAL (SELECT d.qos FROM x) ON true",
    "WITH x AS (SELECT 1) SELECT * FROM (drops JOIN x ON true)",
    "WITH x AS (SELECT 1) SELECT * FROM (WITH y AS (SELECT * FROM x) SELECT * FROM y JOIN x)",
    "SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x) JOIN (WITH x AS (SELECT 2) FROM x)",
    "SELECT 1 WHERE 1 IN (WITH x AS (SELECT 1) SELECT * FROM x)",
    "SELECT 1 WHERE EXISTS (WITH x AS (SELECT 1) SELECT * FROM x)",
    "(WITH x AS (SELECT 1) SELECT * FROM x) UNION (WITH x AS (SELECT 2) SELECT * FROM x)",
    # The inner x is made of the outer one, and hides it.
    "WITH x AS (SELECT 1) SELECT * FROM x, (WITH x AS (SELECT * FROM x) SELECT * FROM x)",
    "WITH x AS (SELECT 1), y AS (WITH x AS (SELECT * FROM x) SELECT * FROM x) SELECT * FROM x, y",
]
OUTSIDE = [
    "SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x) y JOIN {} ON true",
    "SELECT * FROM {} JOIN (WITH x AS (SELECT 1) SELECT * FROM x) y ON true",
    "(WITH x AS (SELECT 1) SELECT * FROM x) UNION SELECT * FROM {}",
    "(WITH x AS (SELECT 1) SELECT * FROM x) UNION (SELECT * FROM {})",
    "SELECT * FROM {} WHERE EXISTS (WITH x AS (SELECT 1) SELECT * FROM x)",
    "SELECT (WITH x AS (SELECT 1 AS a) SELECT a FROM x), (SELECT topic FROM {})",
    "WITH x AS (SELECT * FROM {}) SELECT * FROM x",
    "WITH y AS (SELECT * FROM {}), x AS (SELECT 1) SELECT * FROM x, y",
    "WITH y AS (WITH x AS (SELECT 1) SELECT * FROM x) SELECT * FROM y JOIN {} ON true",
    "WITH y AS (WITH x AS (SELECT 1) SELECT * FROM x), z AS (SELECT * FROM {}) SELECT * FROM z",
    "WITH x AS (SELECT 1) SELECT * FROM default.{}",
]


@pytest.mark.parametrize("sql", INSIDE)
def test_a_name_that_with_gives_counts_in_its_query_and_later_ones_of_the_with(sql: str) -> None:
    assert tables_of(check(sql, "t").sql) <= {"drops"}


@pytest.mark.parametrize("sql", OUTSIDE)
def test_the_same_name_elsewhere_is_a_table(sql: str) -> None:
    with pytest.raises(QueryError, match=r"there is no table (default\.)?x"):
        check(sql.format("x"), "t")
    of_a_table = sql.format("drops")
    assert tables_of(check(of_a_table, "t").sql) == {"drops"}
    assert check(of_a_table, "t").given.keys() == {"drops"}


@pytest.mark.parametrize("name", ["drops", "DROPS", "`rule_x`", "reference_x", "usage"])
def test_no_query_of_a_with_has_the_name_of_a_table(name: str) -> None:
    for sql in (
        f"WITH {name} AS (SELECT 1) SELECT * FROM {name}",
        f"SELECT * FROM {name} JOIN (WITH {name} AS (SELECT 1) SELECT * FROM {name})",
    ):
        with pytest.raises(QueryError, match="is the name of a table"):
            check(sql, "t")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT 1 UNION WITH x AS (SELECT 2) SELECT * FROM x", "parentheses"),
        ("SELECT 1 UNION WITH x AS (SELECT 2) SELECT 3 UNION SELECT * FROM x", "parentheses"),
        ("WITH x AS (SELECT 1), X AS (SELECT 2) SELECT * FROM x", "given twice"),
        ("WITH x AS (SELECT 1) (WITH x AS (SELECT 2) SELECT * FROM x)", "given twice"),
        ("WITH x AS (SELECT 1) SELECT * FROM x VERSION AS OF 1", "is no table"),
        ("WITH x AS (SELECT 1) SELECT * FROM (SELECT * FROM x TIMESTAMP AS OF now())", "no table"),
    ],
)
def test_a_with_that_would_be_read_in_two_ways_is_refused(sql: str, said: str) -> None:
    with pytest.raises(QueryError, match=said):
        check(sql, "t")


def test_each_with_stays_with_its_query() -> None:
    text = "(WITH x AS (SELECT 1) SELECT * FROM x) UNION (WITH x AS (SELECT 2) SELECT * FROM x)"
    assert re.sub(r"/\*@\d+\*/|`", "", check(text, "t").sql) == text


NAMES = ["x", "X", "y", "z"]
QUERIES = [
    "SELECT {number} AS a",
    "SELECT r.a FROM {relation} r",
    "SELECT r.a + s.a AS a FROM {relation} r JOIN {relation} s ON true",
    "SELECT r.a FROM ({relation} r JOIN {relation} s ON r.a < s.a)",
    "SELECT r.a FROM {relation} r UNION SELECT s.a FROM {relation} s ORDER BY a",
    "({query}) UNION ALL SELECT r.a FROM {relation} r",
    "({query}) EXCEPT ({query})",
    "(({query}))",
    "SELECT r.a FROM {relation} r WHERE EXISTS ({query}) OR r.a NOT IN ({query})",
    "SELECT max(r.a) + (SELECT max(a) FROM ({query})) AS a FROM {relation} r",
    "SELECT CASE WHEN EXISTS ({query}) THEN {number} ELSE r.a END AS a FROM {relation} r",
    "SELECT r.a + l.a AS a FROM {relation} r, LATERAL ({query}) l",
    "SELECT v.a FROM {relation} r LATERAL VIEW explode(array(r.a, {number})) v AS a",
]


@st.composite
def queries(
    draw: st.DrawFn, depth: int = 3, known: frozenset[str] = frozenset()
) -> tuple[str, bool]:
    """Return a query of one column, and whether its names are known where they stand."""
    are_known = True

    def inner(depth: int) -> str:
        nonlocal are_known
        query, inner_are_known = draw(queries(depth, known))
        are_known &= inner_are_known
        return query

    def part(slot: re.Match[str]) -> str:
        nonlocal are_known
        if slot[1] == "number":
            return str(draw(st.integers(0, 1_000)))
        if slot[1] == "query":
            return inner(depth - 1) if depth else "SELECT qos AS a FROM drops"
        if depth and draw(st.booleans()):
            return f"({inner(depth - 1)})"
        name = draw(st.sampled_from([*sorted(known) * 3, *NAMES]))
        are_known &= name.lower() in known
        return name

    ctes = []
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=2, unique_by=str.lower)):
        query = inner(depth - 1) if depth else f"SELECT {draw(st.integers(0, 1_000))} AS a"
        ctes.append(f"{name} AS ({query})")
        known |= {name.lower()}
    text = re.sub(r"\{(\w+)\}", part, draw(st.sampled_from(QUERIES)))
    return f"WITH {', '.join(ctes)} {text}" if ctes else text, are_known


@given(queries())
def test_in_nested_queries_a_name_is_known_or_refused(drawn: tuple[str, bool]) -> None:
    text, are_known = drawn
    problem = ""
    try:
        assert tables_of(check(text, "t").sql) <= {"drops"}
    except QueryError as exc:
        problem = exc.problem
    assume("at most 16 may be" not in problem and "given twice" not in problem)
    assert bool(re.match("there is no table [xXyz]", problem)) == (not are_known), problem


def tables_of(sql: str) -> set[str]:
    """Return the relations that Spark would look for beside those of WITH."""
    return set(_tables(parse_one(sql, dialect="databricks"), frozenset()))


def _tables(node: exp.Expr, known: frozenset[str]) -> Iterator[str]:
    head = node.args.get("with_")
    for cte in head.expressions if head else ():
        yield from _tables(cte.this, known)
        known |= {cte.alias.lower()}
    if isinstance(node, exp.Table) and node.name.lower() not in known:
        assert (node.catalog, node.db) == ("", ""), node
        yield node.name
    for child in node.iter_expressions():
        if child is not head:
            yield from _tables(child, known)
