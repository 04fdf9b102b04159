"""Which queries are let through, what becomes of them, and where errors are."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.relations.views import BY_NAME
from api.sql.checking import check
from api.sql.confining import MOST_CHARACTERS
from api.sql.errors import QueryError
from api.sql.usage import usage_select
from mqlake.records.rule_tables import rule_table
from tests.cases import case

HOSTILE = [
    line.replace("\\n", "\n")
    for line in (Path(__file__).parent / "hostile.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]

ALLOWED = [
    "SELECT topic, count(*) FROM messages GROUP BY topic",
    "select * from messages where topic like 'plant/%' and ts > now() - interval 1 hour limit 5",
    "SELECT m.topic FROM messages m JOIN messages n ON m.id = n.id",
    "SELECT * FROM messages m LEFT JOIN retained r USING (topic) ORDER BY 1 NULLS LAST OFFSET 2",
    "WITH hot AS (SELECT topic FROM messages), b AS (SELECT * FROM hot) SELECT count(*) FROM b",
    "SELECT topic, row_number() OVER (PARTITION BY topic ORDER BY ts DESC) FROM messages",
    "SELECT max(qos) OVER (ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)",
    "SELECT min(qos) OVER (ORDER BY ts ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
    "SELECT lag(ts) OVER w FROM messages WINDOW w AS (PARTITION BY topic ORDER BY ts)",
    "SELECT topic FROM messages WHERE client_id LIKE 'dev!_%' ESCAPE '!'",
    "SELECT topic FROM messages WHERE NOT (client_id NOT ILIKE 'dev|%%' ESCAPE '|')",
    "SELECT window.start, window.end, count(*) FROM messages GROUP BY window(ts, '5 minutes')",
    "SELECT window, 1 FROM messages GROUP BY window(ts, '1 hour', '5 minutes') ORDER BY window",
    "SELECT session_window.end FROM messages GROUP BY topic, session_window(ts, '5 minutes')",
    "SELECT rank() OVER window FROM messages WINDOW window AS (PARTITION BY topic ORDER BY ts)",
    "SELECT double('NaN'), float('-Infinity'), array(double('Infinity'))",
    "SELECT topic FROM messages UNION ALL SELECT client_id FROM messages",
    "(SELECT 1) EXCEPT (SELECT 2)",
    "SELECT 1",
    "SELECT * FROM default.messages",
    "SELECT * FROM rule_readings",
    "SELECT level FROM messages LATERAL VIEW OUTER explode(split(topic, '/')) t AS level",
    "SELECT t.key FROM messages, LATERAL variant_explode(payload) AS t",
    "SELECT * FROM messages m, LATERAL (SELECT m.topic)",
    "SELECT * FROM range(3)",
    "SELECT r.id FROM range(0, 10, 2) r JOIN messages m ON m.log_offset = r.id",
    "SELECT count(*) FROM messages;",
    "SELECT * FROM messages VERSION AS OF 3 AS m JOIN messages FOR VERSION AS OF 4 n USING (id)",
    "SELECT * FROM messages TIMESTAMP AS OF '2026-01-01'",
    "SELECT * FROM messages TIMESTAMP AS OF current_timestamp() - INTERVAL 1 HOUR",
    "SELECT count(DISTINCT topic), count(*) FILTER (WHERE qos = 1) FROM messages GROUP BY ALL",
    "SELECT CASE WHEN qos = 0 THEN 'x' ELSE 'y' END, IF(qos = 1, 1, 2) FROM messages",
    "SELECT try_cast(payload_text AS decimal(10, 2)), DATE '2024-01-01' FROM messages",
    "SELECT payload:a.b[0].c::double, payload:['x y'], try_cast(payload:z AS int) FROM messages",
    "SELECT transform(split(topic, '/'), x -> upper(x)), struct(1 AS a).a, map(1, 2)[1] FROM drops",
    "SELECT topic_level(topic, -1) FROM messages WHERE topic_matches(topic, 'a/+/#')",
    "SELECT timestampdiff(MINUTE, ts, now()), extract(hour FROM ts) FROM messages",
    "SELECT topic FROM messages WHERE topic RLIKE '^a/[0-9]+$' OR topic LIKE '%/b/%'",
    "SELECT position('a' IN topic), trim(BOTH 'x' FROM topic), substr(topic, 2) FROM messages",
    "SELECT first(qos) OVER (ORDER BY ts RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW)",
    "SELECT m.* EXCEPT (payload) FROM messages m WHERE NOT retain AND username IS NOT NULL",
    "SELECT sum(count) FROM drops GROUP BY CUBE (reason, gateway) HAVING sum(count) > 1",
    "SELECT -- a comment\n topic /* another ${env:HOME} */ FROM messages",
]


@pytest.mark.parametrize("sql", ALLOWED)
def test_a_query_over_our_tables_is_let_through(sql: str) -> None:
    check(sql, "default")


def test_the_tables_that_a_query_reads_are_known() -> None:
    sql = "WITH m AS (SELECT topic FROM messages) SELECT * FROM m JOIN retained USING (topic)"
    assert check(sql, "default").tables == {"messages", "retained"}
    assert check("SELECT n FROM rule_hot", "default").tables == {"rule_hot"}
    assert check("SELECT 1", "default").tables == set()


def test_usage_is_what_is_known_of_the_tenant_now() -> None:
    asked: list[str] = []

    def usage() -> str:
        asked.append("")
        return usage_select(iter([("rule_outputs", "a'b`${env:HOME}", 7), ("sessions", "", 0)]))

    text = "SELECT u.name, sum(value) FROM usage u JOIN messages ON true GROUP BY 1"
    checked = check(text, "acme", usage=usage)
    rows = checked.given["usage"].rows
    assert "${" not in rows
    assert r"('rule_outputs', 'a\'b`\u0024{env:HOME}', CAST(7 AS BIGINT))" in rows
    assert checked.given.keys() == {"usage", "messages"}
    check("SELECT 1 FROM messages", "acme", usage=usage)
    assert len(asked) == 1, "who does not name it costs nothing"
    for refused in (
        "SELECT * FROM usage VERSION AS OF 1",
        "WITH usage AS (SELECT 1) SELECT * FROM usage",
        "SELECT * FROM other.usage",
    ):
        with pytest.raises(QueryError):
            check(refused, "acme", usage=usage)
    with pytest.raises(QueryError, match="topics alone"):
        check("SELECT * FROM usage", "acme", usage=usage, topic_filters=["#"])
    with pytest.raises(QueryError, match="no table usage"):
        check("SELECT * FROM usage", "acme")


@pytest.mark.parametrize("sql", HOSTILE)
def test_anything_else_is_refused(sql: str) -> None:
    with pytest.raises(QueryError):
        check(sql, "default")


def test_there_are_enough_hostile_statements() -> None:
    assert len(HOSTILE) >= 150


@pytest.mark.parametrize(
    ("sql", "line", "column", "said"),
    [
        ("SELECT topic FROM\n WHERE", 2, 2, "does not parse"),
        ("SELECT *\nFROM secrets", 2, 6, "there is no table secrets"),
        ("SELECT reflect('a', 'b')", 1, 8, "function reflect is not allowed here"),
        ("SELECT\n\n  sequence(1, 2)", 3, 3, "function sequence is not allowed here"),
        ("SELECT 1,\n 'open", 2, 2, "a quote or a comment is not closed"),
        ("SELECT 1; SELECT 2", 1, 9, "a second statement"),
        ("DROP TABLE messages", 1, 1, "the statement is DROP, expected one SELECT"),
        ("SELECT topic LIKE topic FROM messages", 1, 8, "the pattern of LIKE"),
        ("SELECT 1 FROM messages GROUP BY session_window(ts, topic)", 1, 33, "a time and a gap"),
        ("SELECT topic LIKE topic ESCAPE '!'", 1, 8, "ESCAPE stands behind LIKE and a pattern"),
        ("SELECT topic RLIKE 'a' ESCAPE '!'", 1, 8, "ESCAPE stands behind LIKE and a pattern"),
        ("SELECT topic LIKE 'a' ESCAPE '!!'", 1, 8, "ESCAPE takes one character, these are 2"),
        ("SELECT topic LIKE 'a!b' ESCAPE '!'", 1, 8, "! stands before %, _ or !"),
        ("SELECT topic LIKE 'a' ESCAPE NULL", 1, 8, "ESCAPE takes one character, written out"),
    ],
)
def test_the_error_says_what_and_where(sql: str, line: int, column: int, said: str) -> None:
    with pytest.raises(QueryError) as caught:
        check(sql, "default")
    assert said in caught.value.problem
    assert (caught.value.line, caught.value.column) == (line, column)


def test_every_table_is_read_through_a_filter_on_the_tenant() -> None:
    for name in (*BY_NAME, "rule_x"):
        checked = check(
            f"SELECT * FROM {name} a, {name} b WHERE a.ts IN (SELECT 1 FROM {name})",
            "t",
            is_administrator=True,
        )
        assert re.findall(r"FROM /\*@\d+\*/`(\w+)`", checked.sql) == [name] * 2
        assert re.findall(r"JOIN /\*@\d+\*/`(\w+)`", checked.sql) == [name]
        assert checked.given.keys() == {name}
        rows = checked.given[name]
        condition = "tenant = 't'"
        if name == "audit_log":
            condition = f"(contains(tenants, '\"t\"') OR tenants IS NULL AND {condition})"
        table = rule_table("t", name) if name == "rule_x" else name
        assert rows.rows.endswith(f"FROM spark_catalog.default.`{table}` WHERE {condition}")
        assert rows.reads == (f"spark_catalog.default.{table}",)


@pytest.mark.parametrize("name", ["messages", "default.messages"])
@pytest.mark.parametrize(
    "expression",
    [
        "({}):x",
        "({}):x::double",
        "regexp_replace({}, 'a', 'b')",
        "split(regexp_replace({}, 'a', 'b'), 'c')",
        "{} RLIKE 'a'",
        "{} LIKE 'a%b_'",
        "parse_json(regexp_replace({}, 'a', 'b')):x",
    ],
)
def test_a_table_is_filtered_in_what_is_written_anew(expression: str, name: str) -> None:
    inner = f"(SELECT first(payload_text) FROM {name})"
    checked = check(f"SELECT {expression.format(inner)} FROM drops", "t")
    assert set(re.findall(r"FROM /\*@\d+\*/(\S+)", checked.sql)) == {"`drops`", "`messages`"}
    assert checked.given.keys() == {"drops", "messages"}


def test_each_of_several_patterns_is_bounded() -> None:
    inner = "regexp_replace(topic, 'a.*b', '')"
    bounded = "regexp_replace(left(/*@…*/`topic`, 10000), 'a(?:.){0,}b', '')"
    for text in (
        f"{inner}",
        f"parse_json({inner}):x",
        f"regexp_replace({inner}, 'x', '')",
        f"{inner} RLIKE 'x'",
        f"{inner} LIKE 'x_'",
    ):
        sql = check(f"SELECT {text} FROM messages", "t").sql
        assert bounded in re.sub(r"@\d+", "@…", sql), text


def test_a_tenant_is_a_literal_whatever_its_name() -> None:
    checked = check("SELECT 1 FROM drops", "x' OR true OR '${env:HOME}\\")
    where = r" WHERE tenant = 'x\' OR true OR \'\u0024{env:HOME}\\'"
    assert checked.given["drops"].rows.endswith(where)


def test_texts_are_written_anew_and_nothing_of_the_users_comments_is_left() -> None:
    checked = check(
        "SELECT 'it''s ${env:HOME}\\n', \"dq\", r'\\d' -- ' ${x}\n /* y */ , `a``b`", "t"
    )
    assert checked.sql == r"SELECT 'it\'s \u0024{env:HOME}\n', 'dq', '\\d', /*@63*/`a``b`"


def test_length_depth_and_number_of_tables_are_limited() -> None:
    for sql in (
        f"SELECT '{'x' * MOST_CHARACTERS}'",
        f"SELECT {'(' * 100}1{')' * 100}",
        f"SELECT {'- ' * 100}1",
        f"SELECT {'NOT ' * 100}true",
        f"SELECT {'date(' * 30}'2026-01-01'{')' * 30}",
        f"SELECT {'ARRAY[' * 30}1{']' * 30}",
        "SELECT 1 FROM drops" + " UNION ALL SELECT 1 FROM drops" * 16,
        "SELECT " + ", ".join(f"a{number} + 1" for number in range(3_000)),
    ):
        with pytest.raises(QueryError):
            check(sql, "default")


WORDS = st.sampled_from(
    [
        *("SELECT", "FROM", "WHERE", "messages", "drops", "topic", "(", ")", ",", "*", ".", ":"),
        *("::", "'", '"', "`", "/*", "*/", "--", ";", "AS", "x", "[", "]", "1", "'a'", "=", "AND"),
        *("OR", "NOT", "IN", "reflect", "VERSION", "OF", "WITH", "UNION", "ALL", "LATERAL"),
        *("VIEW", "explode", "CAST", "INT", "INTERVAL", "HOUR", "OVER", "->", "${", "{", "}"),
        *("@", "|", "\\", "\n"),
    ]
)


@given(st.lists(WORDS, max_size=30).map(lambda words: "SELECT " + " ".join(words)))
def test_whatever_is_let_through_names_tables_behind_the_filter_only(sql: str) -> None:
    try:
        checked = check(sql, "default")
    except QueryError:
        return
    assert "reflect" not in re.sub(r"'(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`", "", checked.sql)
    for name, given_rows in checked.given.items():
        table = re.escape(f"spark_catalog.default.`{name.partition('@')[0]}`")
        mine = rf".* FROM {table}( (VERSION|TIMESTAMP) AS OF [^;]+)? WHERE tenant = 'default'"
        assert re.fullmatch(mine, given_rows.rows)


NESTED = st.recursive(
    st.sampled_from(
        [
            *("topic", "payload:a", "(SELECT first(topic) FROM default.retained VERSION AS OF 3)"),
            "(WITH w AS (SELECT topic FROM default.drops) SELECT first(topic) FROM w)",
        ]
    ),
    lambda inner: st.builds(
        str.format,
        st.sampled_from(
            [
                *("({}):x", "({}):x[0]::double", "{} RLIKE 'a.*b'", "{} LIKE 'a%b_'", "({})"),
                *("regexp_replace({}, 'a.*b', 'c')", "split({}, '/')[0]", "topic_level({}, 1)"),
                *("transform(array({}), q -> q)", "named_struct('a', {}).a", "NOT {}"),
                *("topic_matches({}, 'a/#')", "timestampdiff(DAY, {}, now())", "{} || 'x'"),
                *("{} IN (SELECT topic FROM messages)", "EXISTS (SELECT 1 FROM drops WHERE {})"),
            ]
        ),
        inner,
    ),
    max_leaves=6,
)


@given(NESTED, NESTED)
def test_whatever_is_nested_is_filtered_and_bounded(item: str, condition: str) -> None:
    try:
        checked = check(f"SELECT {item} FROM default.messages WHERE {condition}", "t")
    except QueryError:
        return
    sql = re.sub(r"/\*@\d+\*/", "", checked.sql)
    assert "default" not in sql.replace("spark_catalog.default.topic_", "")
    named = set(re.findall(r"(?:FROM|JOIN) `([^`]+)`", sql)) - {"w"}
    assert named == checked.given.keys()
    for one in checked.given.values():
        assert re.search(r"default\.`\w+`(?: VERSION AS OF 3)? WHERE tenant = 't'\Z", one.rows)
    assert "'a.*b'" not in sql
    assert not re.search(r"regexp_replace\((?!left\()|(?<!default\.)topic_(matches|level)\(", sql)


def test_reference_tables_are_the_tenants_own() -> None:
    query = "SELECT * FROM reference_machines"
    own = check(query, tenant="default").given["reference_machines"]
    others = check(query, tenant="acme").given["reference_machines"]
    assert own.reads == ("spark_catalog.default.reference_machines",)
    assert others.reads[0].startswith("spark_catalog.default.reference_machines__")
    assert f"`{others.reads[0].rpartition('.')[2]}`" in others.rows
    for name in ("reference_machines__0123456789ab", "reference_", "reference_Ä"):
        with pytest.raises(QueryError, match="there is no table"):
            check(f"SELECT * FROM {name}", tenant="default")


def test_tables_of_rules_are_the_tenants_own() -> None:
    tables = {}
    for tenant in ("default", "acme", "beta"):
        checked = check("SELECT * FROM rule_x VERSION AS OF 3", tenant=tenant)
        rows = checked.given["rule_x"]
        tables[tenant] = rows.reads[0].removeprefix("spark_catalog.default.")
        assert f"`{tables[tenant]}` VERSION AS OF 3 WHERE tenant = '{tenant}'" in rows.rows
        assert tables[tenant] not in checked.sql.replace("`rule_x`", "")
    assert tables["default"] == "rule_x"
    assert len(set(tables.values())) == 3
    for table in (tables["acme"], tables["acme"].upper(), f"default.{tables['acme']}"):
        for tenant in tables:
            with pytest.raises(QueryError, match="there is no table"):
                check(f"SELECT * FROM {table}", tenant=tenant)


def starred(columns: str, times: int, relation: str = "t") -> str:
    """Return a query of the columns of a query, so many times."""
    query = "SELECT 1 AS x"
    for _ in range(times):
        query = f"SELECT {columns} FROM ({query}) {relation}"
    return query


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        (f"SELECT 1 FROM messages GROUP BY CUBE({', '.join(f'qos + {n}' for n in range(24))})",
         "grouped by 16777216 sets"),
        (f"SELECT 1 FROM messages GROUP BY {', '.join(f'qos + {n}' for n in range(7))} WITH CUBE",
         "grouped by 128 sets"),
        ("SELECT 1 FROM messages GROUP BY CUBE(qos, topic, retain, dup), CUBE(id, ts, tenant)",
         "grouped by 128 sets"),
        ("SELECT window(ts, '10000 days', '1 second') FROM messages", "more than 100 windows"),
        ("SELECT window(ts, INTERVAL '9' DAY, '1 second') FROM messages", "more than 100 windows"),
        ("SELECT window(ts, client_id, '1 second') FROM messages", "written out"),
        ("SELECT approx_count_distinct(qos, 0.0002) FROM messages", "from 0.01 to 1"),
        ("SELECT approx_count_distinct(qos, rand()) FROM messages", "from 0.01 to 1"),
        ("SELECT approx_percentile(qos, 0.5, 2000000000) FROM messages", "from 1 to 10000"),
        ("SELECT ntile(2000000000) OVER (ORDER BY qos) FROM messages", "from 1 to 100000"),
        ("SELECT stack(2000000000, 1)", "from 1 to 1000"),
        (f"SELECT json_tuple(client_id{', client_id' * 50}) FROM messages", "at most 50"),
        (f"SELECT {', '.join(['approx_percentile(qos, 0.5)'] * 17)} FROM messages", "17 calls"),
        ("SELECT * FROM range(0, 9, 1, 1000000000)", "at most 3"),
        ("SELECT array_insert(array(1), 1500000000, 1)", "from 1 to 10000"),
        ("SELECT array_insert(array(1), -1500000000, 1)", "from 1 to 10000"),
        ("SELECT array_insert(array(1), qos, 1) FROM messages", "written out"),
        ("SELECT format_number(qos, 1000000000) FROM messages", "from 0 to 100"),
        ("SELECT format_number(qos, topic) FROM messages", "from 0 to 100"),
        (f"SELECT format_number(qos, '{'0' * 101}') FROM messages", "from 0 to 100"),
        ("SELECT format_string('%1999999999d', qos) FROM messages", "up to 999"),
        ("SELECT printf('%-1000s', topic) FROM messages", "up to 999"),
        ("SELECT printf('%.1000f', 1.5)", "up to 999"),
        ("SELECT printf(r'%1000d', qos) FROM messages", "up to 999"),
        (r"SELECT printf('%1\u0030\u0030\u0030d', qos) FROM messages", "up to 999"),
        (r"SELECT printf('%1\060\060\060d', qos) FROM messages", "up to 999"),
        ("SELECT printf('%1%%1000d', qos) FROM messages", "up to 999"),
        ("SELECT printf('%1' '000d', qos) FROM messages", "written out"),
        ("SELECT printf(topic, qos) FROM messages", "written out"),
        ("SELECT regexp_replace(topic, 'a', client_id) FROM messages", "written out"),
        ("SELECT schema_of_variant_agg(payload) FROM messages", "not allowed"),
        (starred("*, *", 7), "128 times"),
        (starred("t.*, t.*", 7), "128 times"),
        (starred("struct(*) AS a, struct(*) AS b", 7), "128 times"),
        (starred("*", 7, "t CROSS JOIN range(1)"), "128 times"),
    ],
)  # fmt: skip
def test_what_costs_too_much_for_each_row_is_refused(query: str, problem: str) -> None:
    with pytest.raises(QueryError, match=problem):
        check(query, "t")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 FROM messages GROUP BY CUBE(qos, topic, retain)",
        "SELECT 1 FROM messages GROUP BY qos, topic WITH ROLLUP",
        "SELECT 1 FROM messages GROUP BY GROUPING SETS ((qos), (topic), ())",
        "SELECT window(ts, '1 hour', '1 minute'), count(*) FROM messages GROUP BY 1",
        "SELECT window(ts, '10 minutes') FROM messages",
        "SELECT approx_count_distinct(qos), approx_count_distinct(qos, 0.05) FROM messages",
        "SELECT ntile(4) OVER (ORDER BY qos) FROM messages",
        "SELECT array_insert(array(1, 2), 2, qos), array_insert(array(1), -1, 2) FROM messages",
        "SELECT format_number(1234.5, 2), format_number(1234.5, '#,##0.00')",
        r"SELECT printf('%05.1f %s\n', 1.5, 'x'), format_string(r'%s\d 10000%% 2026', 'x')",
        "SELECT regexp_replace(topic, 'a', 'b'), regexp_replace(topic, 'a', r'b') FROM messages",
        starred("*", 20),
        starred("t.*, count(*) AS c", 20),
        "SELECT m.*, r.* FROM messages m JOIN retained r USING (topic)",
    ],
)
def test_what_is_usual_is_not(query: str) -> None:
    check(query, "t")


def test_the_audit_log_is_for_administrators() -> None:
    for sql in (
        "SELECT * FROM audit_log",
        "SELECT * FROM default.`AUDIT_LOG`",
        "SELECT * FROM audit_log VERSION AS OF 1",
        "SELECT 1 FROM messages WHERE EXISTS (SELECT 1 FROM audit_log)",
        "WITH x AS (SELECT caller FROM audit_log) SELECT * FROM x",
    ):
        with pytest.raises(QueryError, match="audit_log is for administrators"):
            check(sql, "default")
        assert "audit_log" in check(sql, "default", is_administrator=True).given
    with pytest.raises(QueryError, match="name of a table"):
        check("WITH audit_log AS (SELECT 1 AS one) SELECT * FROM audit_log", "default")


def test_rows_of_the_audit_log_are_for_the_administrators_of_their_tenants() -> None:
    def where(tenant: str, *, is_for_all: bool) -> str:
        given = check(
            "SELECT * FROM audit_log", tenant, is_administrator=True, is_for_all=is_for_all
        ).given
        return given["audit_log"].rows.partition(" WHERE ")[2]

    own = "contains(tenants, '\"acme\"')"
    assert where("acme", is_for_all=False) == f"({own} OR tenants IS NULL AND tenant = 'acme')"
    assert where("acme", is_for_all=True) == f"(tenant = 'acme' OR {own} OR tenants = '[]')"
    # Before tenants were noted, what is of no tenant was the default tenant's.
    assert where("default", is_for_all=False) == "contains(tenants, '\"default\"')"
    assert "tenant = 'default' OR" in where("default", is_for_all=True)


def test_names_are_compared_as_spark_does() -> None:
    """U+017F is an s to it, U+212A a k, U+0131 an i."""
    for sql, said in (
        ("SELECT u\u017fer", "write the column with its table"),
        ("SELECT `u\u017fer`", "write the column with its table"),
        ("SELECT `\u017fess\u0131on_user` FROM messages", "write the column with its table"),
        ("SELECT `current_\u017fchema`", "write the column with its table"),
        ("WITH `me\u017f\u017fages` AS (SELECT 1 AS a) SELECT * FROM messages", "of a table"),
        ("WITH me\u017fsages AS (SELECT 1 AS a) SELECT * FROM messages", "name of a table"),
        ("WITH ref\u0131x AS (SELECT 1 AS a), refix AS (SELECT 2 AS a) SELECT 1", "given twice"),
        ("SELECT * FROM `aud\u0131t_log`", "audit_log is for administrators"),
        (
            "SELECT ran\u212a() OVER (ORDER BY ts) FROM messages",
            "function ran\u212a is not allowed",
        ),
        ("SELECT `\u017fum`(qos) FROM messages", "is not allowed"),
        ("SELECT l\u0131st(a)[0] FROM messages", "is not allowed"),
        ("SELECT * FROM \u017ftack(1, 2)", "is not allowed"),
    ):
        with case(ascii(sql)), pytest.raises(QueryError, match=said):
            check(sql, "t")
    given = check("SELECT * FROM me\u017f\u017fages", "t").given
    assert given.keys() == {"messages"}
    assert "WHERE tenant = 't'" in given["messages"].rows
    week = check("SELECT timestampadd(wee\u212a, 1, ts) FROM messages", "t")
    assert "timestampadd(WEEK, 1, " in week.sql
    named = check("SELECT qos AS gr\u00f6\u00dfe FROM messages", "t")
    assert "`gr\u00f6\u00dfe`" in named.sql


def test_an_escape_is_written_as_the_backslash_that_spark_takes_without_one() -> None:
    sql = check(r"SELECT topic LIKE 'a|%\\|_||%' ESCAPE '|' FROM messages", "t").sql
    assert r" LIKE 'a\\%\\\\\\_|%'" in sql
    assert "ESCAPE" not in sql
