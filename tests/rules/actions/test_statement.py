"""What a statement of the action `sql` may say."""

import string
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.actions import check_actions
from rules.actions.fields import ArgumentError
from rules.actions.statement import check_statement
from rules.errors import RuleError
from rules.model import ActionSpec
from tests.cases import case

TAKEN = (
    "INSERT INTO t (a, b) VALUES (${a}, ${b})",
    "INSERT INTO \"My table\" (\"a b\", c) VALUES (${a}, DEFAULT), (1, 'it''s -- no /* comment')",
    (
        "INSERT INTO public.t AS x (a) VALUES (1) ON CONFLICT (lower(a)) WHERE x.a > 1"
        " DO UPDATE SET (a, b) = (excluded.a, x.b)"
    ),
    "INSERT INTO t VALUES (1) ON CONFLICT ON CONSTRAINT c DO NOTHING RETURNING *;",
    "INSERT INTO t DEFAULT VALUES",
    (
        "WITH x (a) AS (SELECT 1), y AS (DELETE FROM u RETURNING a)"
        " INSERT INTO t SELECT a FROM x UNION SELECT a FROM y"
    ),
    "UPDATE totals SET count = count + 1, a[1] = ${a}, b.c = 2 WHERE site = ${site}",
    "UPDATE ONLY t AS x SET a = u.a, pgs = 1 FROM u WHERE u.b = x.b AND u.lo_limit < 3",
    "DELETE FROM t USING u AS v WHERE v.a = t.a AND t.at < now() - interval '1 day'",
    (
        "MERGE INTO t USING (VALUES (${a}, ${b})) AS s(a, b) ON t.a = s.a"
        " WHEN MATCHED AND t.b IS NULL THEN UPDATE SET b = s.b"
        " WHEN NOT MATCHED THEN INSERT (a, b) VALUES (s.a, s.b)"
    ),
    "CALL app.add(${a}, 2)",
    "call app.nothing();",
    (
        "INSERT INTO t SELECT DISTINCT ON (a) a, count(*) FILTER (WHERE (b)) FROM u"
        " JOIN v USING (a) LEFT JOIN w ON (w.a) = u.a"
        " WHERE (u.a, v.b) IN ((1, 2)) AND NOT (b) GROUP BY (a)"
        " HAVING (a) > 1 ORDER BY (a) DESC NULLS LAST LIMIT (1) OFFSET (2)"
    ),
    "INSERT INTO t SELECT a, s.b FROM (SELECT 1 AS a, 2 AS b) s WHERE EXISTS (SELECT 1 FROM u)",
)
VALUES = (
    *("x #>> '{a,b}'", "x -> ${a} ->> 'b'", "x @> ${a}", "x ? 'a'", "x ?| b", "x ?& b"),
    *("x #- '{a}'", "a || b", "-a", "+a", "~a", "@ a", "|/ a", "||/ a", "a % b", "a ^ 2"),
    *("a & b", "a | b", "a # b", "a << 1", "a >> 1", "a <@ b", "a && b", "a -|- b", "a @@ b"),
    *("a <-> b", "a &< b", "a &> b", "a ~ 'x'", "a ~* 'x'", "a !~ 'x'", "a !~* 'x'", "a ^@ b"),
    *("a LIKE 'x' ESCAPE 'y'", "a NOT ILIKE ('x')", "a SIMILAR TO 'x'", "a <> b", "a != b"),
    *("a IS NOT DISTINCT FROM b", "a IS NOT TRUE", "a BETWEEN 1 AND 2", "a NOT IN (1, 2)"),
    *("a = ANY(${a})", "a > ALL(ARRAY[1])", "(a, b) OVERLAPS (c, d)", "a[1:2]", "a[1][2]"),
    *("a IN (SELECT b FROM u)", "(SELECT max(b) FROM app.u)", 'a COLLATE "C"', "ROW(1, 2)"),
    *("CASE a WHEN 1 THEN (2) ELSE (3) END", "CASE WHEN (a) THEN ${a} END", "1.5e3", "ARRAY[1]"),
    *("extract(epoch from now())", "substring('a' from 1 for 2)", "position('a' in 'b')"),
    *("overlay('a' placing 'b' from 1)", "trim(both 'x' from 'y')", "left(a, 1)", "date(a)"),
    *("a::numeric(10,2)", "CAST(a AS varchar(10))", "${a}::app.mood", "${a}::mood[]"),
    *("a::timestamp(3) with time zone", "timestamp '2026-01-01'", "interval '1 day' * 2"),
    *("a AT TIME ZONE 'UTC'", "CURRENT_DATE", "current_timestamp(3)", "now()", "NOW ( )"),
    *("coalesce(${a}, 0)", "greatest(${a}, 1)", "nullif(a, b)", "md5(${a})", "abs(a)"),
    *("encode(sha256(${a}::bytea), 'hex')", "to_timestamp(${a}::float8 / 1000)"),
    *("gen_random_uuid()", "nextval('ids')", "app.scaled(${a})", '"my app".f(a)'),
    *("string_agg(a, ',')", "array_agg(a ORDER BY b)", "count(DISTINCT a)", "st_point(1, ${a})"),
    *("jsonb_set(a, '{b}', ${a})", "jsonb_build_object('a', ${a})", "unnest(${a}::int[])"),
    *("jsonb_array_elements(${a}::jsonb)", '"lower"(a)', "'pg_sleep'", "t.*"),
)

REFUSED = (
    *((one, "not one INSERT, UPDATE, DELETE, MERGE or CALL") for one in ("SELECT 1", ";", "  ")),
    *(
        (one, "not one INSERT")
        for one in ("DROP TABLE t", "TRUNCATE t", "SET ROLE x", "VALUES (1)")
    ),
    *(
        (one, "not one INSERT")
        for one in ("COPY t FROM '/etc/passwd'", "DO 'begin end'", "VALUES (1)")
    ),
    ("INSERT INTO t VALUES (1); DROP TABLE t", "not one INSERT"),
    ("WITH x AS (SELECT 1) SELECT * FROM x", "not one INSERT"),
    ("not sql at all (", "not one INSERT"),
    ("INSERT INTO t VALUES", "not SQL"),
    ("EXPLAIN ANALYZE DELETE FROM t", "not one INSERT"),
    ("CALL p(1)", "calls p, which is on no list"),
    ("CALL public.p(1)", "calls public.p, which is on no list"),
    ("CALL lower('x')", "no procedure"),
    ("CALL app.p(1) + 1", "no procedure"),
    ("CALL", "no procedure"),
    ("UPDATE pg_authid SET rolsuper = true", "pg_authid, the system's own"),
    ("DELETE FROM t WHERE pg_sleep(9) IS NULL", "pg_sleep, the system's own"),
    ("INSERT INTO t VALUES ('${a}')", "not where a value"),
    ('INSERT INTO "${a}" VALUES (1)', "not where a value"),
    ("INSERT INTO t VALUES (date ${a})", "not where a value"),
    ("INSERT INTO t VALUES (INTERVAL ${a})", "not where a value"),
    ("INSERT INTO t VALUES ($1)", "dollar"),
    ("INSERT INTO t VALUES ($$x$$)", "dollar"),
    ("INSERT INTO t VALUES (${$}1)", "dollar"),
    ("UPDATE t SET a = 1 FROM lower('a') AS f WHERE f.x", "in place of a table"),
    ("DELETE FROM t USING u, lower('a') AS f WHERE f.x", "in place of a table"),
    ("MERGE INTO t USING lower('a') AS f ON f.x WHEN MATCHED THEN DELETE", "in place of a table"),
)
"""Statements, and words of their errors."""
REFUSED_BEHIND_INSERT = (
    # Functions that are on no list, however they are written
    *((f"VALUES ({one})", "no list") for one in ("f(1)", "repeat('x', 9)", "lpad('x', 9)")),
    *((f"VALUES ({one})", "no list") for one in ("rpad('x', 9)", "format('%9s', 'x')", "F ()")),
    ("SELECT generate_series(1, 1000000000000)", "generate_series, which is on no list"),
    ("SELECT a FROM generate_series(1, 10) AS a", "generate_series, which is on no list"),
    ("SELECT query_to_xml('SELECT 1', true, true, '')", "on no list"),
    ("SELECT word FROM ts_stat('SELECT 1')", "on no list"),
    ("SELECT current_setting('config_file')", "on no list"),
    ("SELECT set_config('role', 'postgres', false)", "on no list"),
    ("SELECT * FROM dblink('host=x', 'SELECT 1') AS q(a int)", "on no list"),
    ("SELECT * FROM public.dblink('host=x', 'SELECT 1') AS q(a int)", "on no list"),
    ("VALUES (app.dblink_exec('host=x', 'x'))", "on no list"),
    ("VALUES (app.lo_import('/etc/passwd'))", "on no list"),
    ("VALUES (public.crosstab('SELECT 1'))", "public.crosstab, which is on no list"),
    ("VALUES (lo_import('/etc/passwd'))", "on no list"),
    ("VALUES (1 OPERATOR(app.+) 2)", "operator, which is on no list"),
    ("SELECT a FROM t TABLESAMPLE system(10)", "on no list"),
    ("VALUES (XMLPARSE(DOCUMENT 'x'))", "on no list"),
    ("VALUES (coalesce(f (1), 2))", "calls f"),
    ("VALUES (1) ON CONFLICT (f(a)) DO NOTHING", "calls f"),
    ("VALUES (1) ON CONFLICT (a) DO UPDATE SET a = f(1)", "calls f"),
    ("VALUES (1) RETURNING f(a)", "calls f"),
    # What is the system's
    ("SELECT passwd FROM pg_shadow", "pg_shadow, the system's own"),
    ("SELECT passwd FROM PG_SHADOW", "the system's own"),
    ('SELECT passwd FROM "pg_shadow"', "the system's own"),
    ("SELECT 1 FROM information_schema.tables", "the system's own"),
    ("VALUES (pg_read_file('/etc/passwd'))", "the system's own"),
    ("VALUES (pg_catalog.upper('x'))", "the system's own"),
    ("VALUES (postgres.pg_catalog.upper('x'))", "the system's own"),
    ('VALUES ("pg_catalog"."upper"(\'x\'))', "the system's own"),
    ("VALUES ('pg_shadow'::regclass)", "no list"),
    # Attributes that are calls
    *((f"SELECT ('/etc/passwd'::text).{one}", "refused|dot|own") for one in ("pg_ls_dir", "f")),
    ("SELECT ((1)).f", "a dot that is not between two names"),
    ("SELECT (u).f FROM u", "a dot that is not between two names"),
    ("SELECT (u).* FROM u", "a dot that is not between two names"),
    ("SELECT (SELECT u).f FROM u", "a dot that is not between two names"),
    ("SELECT a[1].f FROM u", "a dot that is not between two names"),
    ("VALUES (${a}.f)", "a dot that is not between two names"),
    ("VALUES ('x' . f)", "a dot that is not between two names"),
    ("SELECT u.record_out FROM u", "record_out, which is on no list"),
    ("SELECT f.x FROM lower('a') AS f", "in place of a table"),
    ("SELECT f.x FROM app.g('a') AS f", "in place of a table"),
    ("SELECT f.x FROM u, lower('a') AS f", "in place of a table"),
    ("SELECT f.x FROM u CROSS JOIN lower('a') f", "in place of a table"),
    ("SELECT f.x FROM (lower('a')) AS f", "in place of a table"),
    ("SELECT f.x FROM ROWS FROM (lower('a')) AS f", "in place of a table"),
    ("SELECT f.x FROM cast('x' AS text) AS f", "in place of a table"),
    ("SELECT f.x FROM CURRENT_USER AS f", "in place of a table"),
    ("SELECT u.x FROM LATERAL lower('a') AS u", "no list"),
    ("SELECT u.x FROM unnest(ARRAY['a']) AS u", "no list"),
    ("SELECT 1 FROM ${a}", "in place of a table"),
    # Clauses that do more
    ("SELECT a INTO b FROM u", "INTO, which is on no list"),
    ("SELECT a FROM u FOR UPDATE", "no list"),
    ("WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT 1 FROM x) SELECT 1 FROM x", "RECURSIVE"),
    # What another parser may take for other words
    ("VALUES (1) -- ${a}", "a comment"),
    ("VALUES (1 /* 2 */)", "a comment"),
    ("VALUES (1 #--'\n-pg_sleep(1) --'\n)", "a comment"),
    ("VALUES (1 ||/* '*/ - pg_sleep(1) /*' */)", "a comment"),
    *((f"VALUES ({one})", "prefix") for one in ("E'x'", "e'x'", "B'1'", "X'1f'", "N'x'", "U&'x'")),
    *((f"VALUES ({one})", "prefix") for one in ("_'x'", "1'x'", "a'x'", "u&'x'")),
    ('VALUES (1) RETURNING U&"\\0070g_sleep"', "prefix"),
    ("VALUES (größe)", "outside quotes, a character"),
    ("VALUES (1\u00a0)", "outside quotes, a character"),
    ("VALUES ({{ a }})", "outside quotes, a character"),
    ("VALUES (a\\b)", "outside quotes, a character"),
    ("VALUES (1.f)", "a number"),
    ("VALUES (1a)", "a number"),
    ("VALUES ('x", "not closed"),
    ("VALUES (" + "(" * 50 + "1" + ")" * 50 + ")", "nested too deeply"),
    ("SELECT " + "date(" * 30 + "1" + ")" * 30, "nested too deeply"),
    ("SELECT " + "ARRAY[" * 30 + "1" + "]" * 30, "nested too deeply"),
    # Were errors of other kinds
    ('SELECT {{ : } OFFSET "zzmark"() treat( %} HAVING FROM t', "statement"),
    ("SELECT a.b.c.d.e", "more than four parts"),
    ("SELECT " + "a." * 2_000 + "a", "more than four parts"),
    ("VALUES (" + "NOT " * 2_000 + "a)", "statement"),
    ("VALUES (" + " - " * 2_000 + "1)", "statement"),
)


def test_statements_are_taken() -> None:
    for statement in (*TAKEN, *(f"INSERT INTO t SELECT {one} FROM t" for one in VALUES)):
        with case(statement):
            check_statement(statement)


def test_statements_are_refused() -> None:
    behind = ((f"INSERT INTO t {one}", words) for one, words in REFUSED_BEHIND_INSERT)
    for statement, words in (*REFUSED, *behind):
        with case(statement), pytest.raises(ArgumentError, match=words):
            check_statement(statement)


def test_an_error_says_where_it_is_in_the_text_of_the_user() -> None:
    with pytest.raises(ArgumentError, match=r"line 2, column 27 of the statement\)"):
        check_statement("INSERT INTO t\nVALUES (${site.name}, now(f(1)))")


def test_each_place_of_a_placeholder_is_a_parameter_of_its_own() -> None:
    checked = check_statement("INSERT INTO t VALUES (${a},${b},${a}) ON CONFLICT DO NOTHING ;")
    assert "".join(checked.text.split()) == "INSERTINTOtVALUES($1,$2,$3)ONCONFLICTDONOTHING"
    assert [one.name for one in checked.placeholders] == ["a", "b", "a"]


def test_a_parameter_has_a_type_where_its_place_has_none() -> None:
    for value, typed in (
        ("CASE WHEN ${a} IS NULL THEN ${b} END", "CASE WHEN $1::text IS NULL THEN $2 END"),
        ("a = ${a} IS NULL", "a = $1 IS NULL"),
        ("jsonb_build_object(${a}, ${b}, 'c', ${c})", "$1::text , $2::jsonb , 'c', $3::jsonb"),
        ("json_build_array(${a}, ARRAY[1, 2], ${b} + 1)", "$1::jsonb , ARRAY[1, 2], $2 + 1"),
        ("to_jsonb(${a}::int)", "$1 ::int"),
        ("concat('a', ${a})", "$1::text"),
        ("app.concat('a', ${a})", "app.concat('a', $1 )"),
        ("lower(${a})", "lower( $1 )"),
    ):
        with case(value):
            text = check_statement(f"INSERT INTO t SELECT {value} FROM t").text
            assert " ".join(typed.split()) in " ".join(text.split())


KEYWORDS = """
INSERT INTO UPDATE DELETE FROM MERGE CALL WITH SELECT SET VALUES USING WHEN MATCHED WHERE ON
CONFLICT DO NOTHING RETURNING AS CASE END TREAT OFFSET HAVING ORDER BY GROUP LIMIT JOIN LATERAL
UNION NOT NULL IS IN BETWEEN LIKE CAST INTERVAL DATE EXTRACT ARRAY ROW OVER FILTER TABLE FUNCTION
IF FOR RECURSIVE DISTINCT ALL ANY ( ) [ ] { } {{ }} {% %} , . ; : :: := => -> ->> #> @> ? ?& || | &
# ~ * / + - % ^
"""
WORDS = st.sampled_from(
    [
        *KEYWORDS.split(),
        "=",
        "<",
        ">",
        "!",
        "@",
        "$1",
        "${a}",
        "${a.b[1]}",
        "''",
        "'a'",
        '"b"',
        "E'\\'",
        "--",
        "/*",
        "*/",
        "\n",
        "t",
        "u",
        "t.f",
        "app.f(1)",
        "lower",
        "pg_sleep",
        "1",
        "1.",
        ".5",
        "1e9",
        "0x1",
        "\0",
        "\ud800",
        "é",
        "\u017f",
        "U&'\\0041'",
        "x'zz'",
        "b'2'",
        "$",
        "\\",
    ]
)
STATEMENTS = st.one_of(
    st.lists(WORDS, max_size=30).map(" ".join),
    st.lists(WORDS, max_size=30).map("".join),
    st.lists(WORDS, max_size=20).map(lambda words: "INSERT INTO t " + " ".join(words)),
    st.text(alphabet=string.printable, max_size=60),
    st.builds(
        lambda text, words, at, length: (
            text[: at % len(text)] + " ".join(words) + text[at % len(text) + length :]
        ),
        st.sampled_from((*TAKEN, *(f"INSERT INTO t SELECT {one} FROM t" for one in VALUES))),
        st.lists(WORDS, max_size=3),
        st.integers(0, 10_000),
        st.integers(0, 8),
    ),
)


@given(STATEMENTS)
def test_the_check_raises_nothing_but_its_error(statement: str) -> None:
    args: dict[str, Any] = {"connection": "db", "statement": statement}
    # Of anything else the test fails.
    with suppress(RuleError):
        check_actions([ActionSpec(function="sql", args=args)])
