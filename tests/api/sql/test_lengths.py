"""How long the values of a query may become: what is refused, and what an estimate lets through."""

import pytest

from api.relations.views import TOPIC_LEVEL, TOPIC_MATCHES
from api.sql.checking import check
from api.sql.errors import QueryError
from api.sql.growth import GROWTH
from rules.sql.functions import ALLOWED, PATTERN_FUNCTIONS, TABLE_FUNCTIONS
from tests.cases import case


def nested(call: str, start: str, times: int) -> str:
    """Return a call of a call of a call: `{}` is what is within."""
    for _ in range(times):
        start = call.replace("{}", start)
    return start


def chain(call: str, start: str, times: int) -> str:
    """Return the same, as at most 14 queries of WITH, each over the one before."""
    together = -(-times // 14)
    ctes = [f"c0 AS (SELECT {start} AS s)"]
    for number in range(1, -(-times // together) + 1):
        made = nested(call, "s", together)
        ctes.append(f"c{number} AS (SELECT {made} AS s FROM c{number - 1})")
    return f"WITH {', '.join(ctes)} SELECT length(s) FROM c{len(ctes) - 1}"


X = "'" + "x" * 20 + "'"
NINETY = "'" + "y" * 90 + "'"
TEN = f"concat({', '.join(['{}'] * 10)})"
LONG = nested(TEN, X, 3)
Y, Z, W = (f"'{one * 35}'" for one in "yzw")
LARGE = f"replace(replace(replace('xxxxxxxxxx', 'x', {Y}), 'y', {Z}), 'z', {W})"
REFUSED = [
    "SELECT length(" + nested(f"replace({{}}, 'x', {NINETY})", X, 4) + ")",
    "SELECT length(" + nested(f"regexp_replace({{}}, 'x', {NINETY})", X, 4) + ")",
    chain(TEN, "'s'", 9),
    chain(TEN.replace("concat", "array"), "'s'", 9),
    chain(TEN.replace("concat(", "concat_ws(',', "), "'s'", 9),
    chain(" || ".join(["{}"] * 10), "'s'", 9),
    chain("struct({} AS a, {} AS b)", "'s'", 30),
    chain("named_struct('a', {}, 'b', {})", "null", 30),
    chain("map(1, {}, 2, {})", "1", 30),
    chain("format_string('%s%s%s%1$s%1$s', {}, {}, {})", "'s'", 12),
    chain("hex({})", "'s'", 30),
    chain("base64({})", "'s'", 60),
    chain("url_encode({})", "'%'", 30),
    chain("quote({})", "'s'", 40),
    chain("to_json(array({}))", "'\"'", 20),
    chain(
        "overlay({} PLACING {} FROM 1)".replace(" PLACING ", ", ").replace(" FROM ", ", "), X, 30
    ),
    chain("translate({}, 'a', 'ä')", X, 20),
    chain("array_join(array({}, {}), {})", X, 9),
    chain("array_insert({}, 10000, 'a')", "array('a')", 20),
    chain("arrays_zip({}, {})", "array('a')", 30),
    chain("map_from_arrays(array(1, 2), array({}, {}))", "'s'", 30),
    chain("transform(split({}, ''), x -> concat('0123456789', x))", X, 9),
    chain("aggregate(array(1, 2, 3), {}, (acc, x) -> concat(acc, acc))", "'s'", 1),
    chain("reduce(split({}, ''), '', (acc, x) -> concat(acc, '0123456789'))", X, 9),
    chain("zip_with(split({}, ''), array(1), (x, y) -> '0123456789')", X, 9),
    chain("aggregate(array({}), '', (a, x) -> concat(a, x, x), a -> concat(a, a))", "'s'", 20),
    "SELECT transform(array(m.topic), x -> replace(x, 'a', x)) FROM messages m",
    chain("from_json({}, 'array<struct<a int, b int, c int>>')", "'[{},{}]'", 9),
    "SELECT replace(topic, '/', topic) FROM messages",
    "SELECT replace(payload_text, 'x', '" + "y" * 200 + "') FROM messages",
    "SELECT concat_ws(topic, split(payload_text, ',')) FROM messages",
    "SELECT array_join(split(topic, '/'), payload_text) FROM messages",
    "SELECT transform(split(topic, '/'), x -> payload_text) FROM messages",
    "SELECT aggregate(split(topic, '/'), '', (a, x) -> concat(a, left(a, 9), a)) FROM messages",
    # Names: of a subquery, of columns behind an alias, an alias beside it, of rows, of a set.
    f"SELECT length({nested(TEN, 't', 2)}) FROM (SELECT {LONG} AS t)",
    f"SELECT {nested(TEN, 'b', 2)} FROM (SELECT 1, {LONG}) AS t(a, b)",
    f"SELECT {LONG} AS t, {nested(TEN, 't', 2)} AS u",
    f"SELECT {nested(TEN, 't.b', 2)} FROM (SELECT {LONG} AS b) AS t",
    f"SELECT {nested(TEN, 't.b.c', 2)} FROM (SELECT struct({LONG} AS c) AS b) AS t",
    f"WITH t(a, b) AS (SELECT 1, {LONG}) SELECT {nested(TEN, 'b', 2)} FROM t",
    f"WITH t AS (SELECT upper({LONG})) SELECT {nested(TEN, '`upper(x)`', 2)} FROM t",
    f"SELECT {nested(TEN, 'e', 2)} FROM messages LATERAL VIEW explode(array({LONG})) t AS e",
    f"SELECT {nested(TEN, 'col', 2)} FROM explode(array({LONG}))",
    f"SELECT {nested(TEN, 's', 2)} FROM (SELECT 'a' AS s UNION ALL SELECT {LONG})",
    f"SELECT {nested(TEN, 's', 2)} FROM (SELECT (SELECT max({LONG}) FROM messages) AS s)",
    f"SELECT (SELECT {nested(TEN, 'c.s', 2)}) FROM (SELECT {LONG} AS s) AS c",
    f"SELECT 1 FROM messages WHERE length({nested(TEN, 'topic', 3)}) > 1",
    f"SELECT 1 FROM messages GROUP BY {nested(TEN, 'topic', 3)}",
    f"SELECT 1 FROM messages ORDER BY {nested(TEN, 'topic', 3)}",
    f"SELECT 1 FROM messages m JOIN messages n ON m.topic = {nested(TEN, 'n.topic', 3)}",
    f"SELECT max({nested(TEN, 'topic', 3)}) OVER (PARTITION BY topic) FROM messages",
    f"SELECT 1 FROM messages HAVING max({nested(TEN, 'topic', 3)}) = 'x'",
    f"SELECT to_json(struct(*, *, *, *, *, *, *, *, *, *)) FROM (SELECT {LONG} AS s)",
    f"SELECT 1 FROM messages WHERE topic IN ({', '.join([LARGE] * 180)})",
    # Rows
    f"SELECT {', '.join(['s'] * 900)} FROM (SELECT {LONG} AS s)",
    f"SELECT {', '.join(['payload'] * 200)} FROM messages",
]


def test_what_may_become_too_long_is_refused() -> None:
    for number, sql in enumerate(REFUSED):
        with case(f"{number}: {sql[:200]}"), pytest.raises(QueryError, match="may be too long"):
            check(sql, "default")


TAKEN = [
    "SELECT replace(topic, '/', ' > '), upper(payload_text) FROM messages",
    "SELECT concat(topic, ': ', payload_text), topic || payload_text FROM messages",
    f"SELECT concat_ws(', ', {', '.join(f'payload:a{n}::string' for n in range(20))}) FROM drops",
    "SELECT regexp_replace(payload_text, '[0-9]+', '#'), to_json(payload:a) FROM messages",
    "SELECT date_format(ts, 'yyyy') || '-' || date_format(ts, 'MM') || '-' FROM messages",
    "SELECT transform(split(topic, '/'), x -> upper(x)) FROM messages",
    "SELECT filter(split(topic, '/'), x -> x <> '') FROM messages",
    "SELECT transform(split(topic, ','), x -> struct(x AS text, x::double AS value)) FROM messages",
    "SELECT aggregate(split(payload_text, ','), 0D, (a, x) -> a + x::double) FROM messages",
    "SELECT aggregate(split(topic, '/'), '', (a, x) -> concat(a, '.', x)) FROM messages",
    "SELECT from_json(payload_text, 'a double, b string, c struct<d array<int>>') FROM messages",
    "SELECT array_join(transform(split(topic, '/'), x -> initcap(x)), ' / ') FROM messages",
    "SELECT map_from_arrays(array('a', 'b'), array(topic, client_id)) FROM messages",
    "SELECT replace(left(topic, 500), '+', left(client_id, 100)) FROM messages",
    f"WITH a AS (SELECT {TEN.replace('{}', 'topic')} AS s FROM messages) SELECT upper(s) FROM a",
    f"SELECT {', '.join(f'c{n}' for n in range(300))} FROM rule_wide",
    "SELECT transform(array(1, 2), x -> replace('a', 'a', cast(x AS string)))",
    chain("concat({}, {})", "'s'", 14),
    chain("upper(left({}, 100))", "'s'", 28),
    # Elements of a list are as long as the list, all together.
    chain("transform(split({}, ','), x -> concat(x, x, x, x))", "'s'", 3),
    "SELECT transform(split(payload_text, ','), x -> concat(x, x, x, x)) FROM messages",
    "SELECT transform(array('a', 'b'), x -> transform(array('c'), y -> x || y || x))",
]


def test_what_people_write_is_taken() -> None:
    for sql in TAKEN:
        with case(sql[:200]):
            check(sql, "default")


def test_the_error_says_where_and_what_to_do() -> None:
    with pytest.raises(QueryError) as caught:
        check("SELECT topic,\n  replace(topic, '/', payload_text) FROM messages", "default")
    problem = caught.value
    assert (problem.line, problem.column) == (2, 3)
    assert problem.problem == "this may be too long: more than 128 times a stored value"
    assert problem.hint == "shorten what it is made of, as left(x, 100) does"


def test_every_function_says_what_it_makes() -> None:
    views = {TOPIC_MATCHES, TOPIC_LEVEL}
    assert GROWTH.keys() == ALLOWED | TABLE_FUNCTIONS | PATTERN_FUNCTIONS | views
