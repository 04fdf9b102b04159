"""Small questions that are answered without Spark have the answers that Spark gives."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from api.relations.catalog import FUNCTIONS, made_by
from api.sql.checking import CheckedQuery, check
from api.sql.direct.payloads import Unclear, as_variant
from api.sql.direct.questions import SmallQuestion
from api.sql.direct.worker import Tables, answer
from api.sql.results import Result, ResultColumn, write
from mqlake.tables.catalogue import EVENTS, MESSAGES, RETAINED, SESSIONS, TABLES, Table
from streaming.settings.lake import LakeSettings
from streaming.tables.tables import create_tables
from tests.ingest.simulations import simulations_wanted

pytestmark = [pytest.mark.promise, pytest.mark.spark]

QUESTIONS: Final = simulations_wanted(40)
TENANT: Final = "acme"
ROWS: Final = 100
START: Final = datetime(2026, 3, 1, 23, 59, 58, tzinfo=UTC)
TEXTS: Final = (
    *("a", "a/b", "/a", "a//b", "a/b/", "A/b", "ä/ß", "a%_b", "a\\b", "'", "$x/a", "z" * 40, ""),
    *("line\nfeed/a", "😀/a", "\ue000/b", None),
)
PAYLOADS: Final = (
    *(b"on", b"21.5", b"21.50", b"-0.0", b"1e3", b"", b"\xff\x00", b"null", b"true", b'"x"'),
    *(b'{"b": 1, "a": [1, 2.50, null, {"c": "\xc3\xa4"}]}', b'{"a": 1, "a": 2}', b"[1, 2", b"NaN"),
    *(b'{"a": "\\u0001\\n\\/"}', b"123456789012345678901234567890", b" 7 ", b"01", "😀".encode()),
    *(b'{"\xef\xbf\xbd": 1, "\xf0\x9f\x98\x80": 2}', b'"\\ud800"', b"[]", b"{}", b"0.1e-7", None),
)
ARROW: Final = {
    "string": pa.string(),
    "tinyint": pa.int8(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
    "array<bigint>": pa.list_(pa.int64()),
}


def value_of(random: Random, name: str, type_: str) -> Any:
    if name == "tenant":
        return random.choice((TENANT, TENANT, "other"))
    made: dict[str, Callable[[], Any]] = {
        "string": lambda: random.choice(TEXTS),
        "tinyint": lambda: random.choice((0, 1, 2, -128, 127, None)),
        "int": lambda: random.choice((0, 1, -5, 2**31 - 1, None)),
        "bigint": lambda: random.choice((0, 7, -1, 2**63 - 1, -(2**63), None)),
        "boolean": lambda: random.choice((True, False, None)),
        "timestamp": lambda: random.choice(
            (None, START + timedelta(microseconds=random.choice((0, 1, 2_000_000, 86_400_000_000))))
        ),
        "binary": lambda: random.choice(PAYLOADS),
        "array<bigint>": lambda: random.choice((None, [], [1, 2], [-1, None])),
    }
    return made[type_]()


@pytest.fixture(scope="module")
def folder(
    spark: SparkSession,
    streaming_settings: LakeSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """Tables with rows of all kinds, in several files."""
    for table in TABLES:  # the catalog may know them in the folder of another test
        spark.sql(f"DROP TABLE IF EXISTS {table.name}")
    own = {"data_dir": tmp_path_factory.mktemp("data")}
    create_tables(spark, streaming_settings.model_copy(update=own))
    tables = own["data_dir"] / "tables"
    random = Random(7)
    for table in (MESSAGES, RETAINED, EVENTS, SESSIONS):
        for _ in range(3):
            frame = spark.createDataFrame(rows_of(random, table, 40))
            frame.write.mode("append").insertInto(table.name)
    for name in FUNCTIONS:
        for statement in made_by(name, tables):
            spark.sql(statement)
    yield tables
    for table in TABLES:
        spark.sql(f"DROP TABLE {table.name}")


def rows_of(random: Random, table: Table, count: int) -> pa.Table:
    columns = {
        column.name: pa.array(
            [value_of(random, column.name, column.type) for _ in range(count)], ARROW[column.type]
        )
        for column in table.columns
    }
    return pa.table(columns)


class Writer:
    """Writes questions about one table."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._table = random.choice((MESSAGES, MESSAGES, RETAINED, EVENTS, SESSIONS))
        types = {column.name: column.type for column in self._table.columns}
        if "payload" in types:
            types |= {"payload": "variant", "payload_text": "string", "payload_bytes": "binary"}
        self._types = types
        self._sortable = [
            name
            for name, type_ in types.items()
            if type_ not in ("variant", "binary", "array<bigint>")
        ]

    def query(self) -> tuple[str, bool]:
        """Return a query, and whether its rows have one order only."""
        random = self._random
        where = f" WHERE {self.condition(2)}" if random.random() < 0.7 else ""
        source = f" FROM {self._table.name}{where}"
        kind = random.random()
        if kind < 0.4:
            return self._rows(source)
        if kind < 0.5:
            return f"SELECT {', '.join(self.aggregates(3))}{source}", True
        if kind < 0.6:
            names = random.sample(self._sortable, 2)
            order = f" ORDER BY {', '.join(map(self._direction, names))}"
            return (
                f"SELECT DISTINCT {', '.join(names)}{source}{order} LIMIT {random.randint(0, 9)}",
                True,
            )
        return self._groups(source)

    def _rows(self, source: str) -> tuple[str, bool]:
        random = self._random
        listed = "*" if random.random() < 0.3 else ", ".join(random.sample(list(self._types), 3))
        if random.random() < 0.3:
            return f"SELECT {listed}{source}", False
        # All that can be compared: rows that are equal then may differ in payloads only.
        order = random.sample(self._sortable, len(self._sortable))
        if listed == "*" or "payload" in listed or "cursor" in listed:
            return (
                f"SELECT {listed}{source} ORDER BY {', '.join(map(self._direction, order))}",
                False,
            )
        limit = f" LIMIT {random.randint(0, 30)}"
        limit += f" OFFSET {random.randint(0, 9)}" if random.random() < 0.3 else ""
        return (
            f"SELECT {listed}{source} ORDER BY {', '.join(map(self._direction, order))}{limit}",
            True,
        )

    def _groups(self, source: str) -> tuple[str, bool]:
        random = self._random
        keys = [self.value()[0] for _ in range(random.randint(1, 2))]
        items = [f"{key} AS k{number}" for number, key in enumerate(keys)]
        names = [f"k{number}" for number in range(len(keys))]
        group = random.choice(
            (
                ", ".join(keys),
                ", ".join(names),
                "ALL",
                ", ".join(str(n + 1) for n in range(len(keys))),
            )
        )
        having = ""
        if random.random() < 0.3:
            held = random.choice(("count(*) > 1", "max(log_offset) >= 0", f"{keys[0]} IS NOT NULL"))
            having = f" HAVING {held}"
        order = ", ".join(self._direction(name) for name in random.sample(names, len(names)))
        first = (
            f"{self._direction(random.choice(('n', 'count(*)')))}, "
            if random.random() < 0.5
            else ""
        )
        aggregates = ", ".join(("count(*) AS n", *self.aggregates(2)))
        return (
            f"SELECT {', '.join(items)}, {aggregates}{source} GROUP BY {group}{having}"
            f" ORDER BY {first}{order} LIMIT {random.randint(1, 50)}"
        ), True

    def _direction(self, name: str) -> str:
        return name + self._random.choice(("", " ASC", " DESC", " NULLS LAST", " DESC NULLS FIRST"))

    def aggregates(self, count: int) -> list[str]:
        random = self._random
        made = []
        for _ in range(count):
            name = random.choice(self._sortable)
            made.append(
                random.choice(
                    (
                        "count(*)",
                        f"count({name})",
                        f"count(DISTINCT {name})",
                        f"min({name})",
                        f"max({name})",
                    )
                )
            )
        return made

    def value(self) -> tuple[str, str]:
        """Return an expression that can be compared, and its type."""
        random = self._random
        name = random.choice(self._sortable)
        type_ = self._types[name]
        if type_ == "timestamp" and random.random() < 0.4:
            unit = random.choice(
                ("second", "MINUTE", "hour", "day", "week", "month", "quarter", "year")
            )
            return f"date_trunc('{unit}', {name})", type_
        if type_ == "string" and random.random() < 0.3:
            return random.choice(
                (
                    (f"topic_level({name}, {random.randint(1, 3)})", "string"),
                    (f"length({name})", "int"),
                    (f"left({name}, 2)", "string"),
                )
            )
        return name, type_

    def condition(self, depth: int) -> str:
        random = self._random
        if depth and random.random() < 0.5:
            word = random.choice(("AND", "OR"))
            return f"({self.condition(depth - 1)} {word} {self.condition(depth - 1)})"
        if random.random() < 0.15:
            return f"NOT {self.condition(0)}"
        value, type_ = self.value()
        if random.random() < 0.15:
            return f"{value} IS {random.choice(('', 'NOT '))}NULL"
        if type_ == "boolean":
            return random.choice((value, f"{value} = true", f"{value} <> false"))
        if type_ == "string" and random.random() < 0.4:
            filter_ = random.choice(("#", "+/b", "a/#", "+/+", "a/b", "+/a/#", "$x/#"))
            pattern = random.choice(("a%", "%b", "%a%b%", "a_b", "%\n%", "_", "%", "😀%", "a/b"))
            return random.choice(
                (
                    f"topic_matches({value}, '{filter_}')",
                    f"{value} {random.choice(('', 'NOT '))}LIKE '{pattern}'",
                )
            )
        given = [self.literal(type_) for _ in range(3)]
        return random.choice(
            (
                *(f"{value} {word} {given[0]}" for word in ("=", "<>", "!=", "<", "<=", ">", ">=")),
                f"{given[0]} < {value}",
                f"{value} IN ({', '.join(given)})",
                f"{value} NOT IN ({given[0]})",
                f"{value} {random.choice(('', 'NOT '))}BETWEEN {given[0]} AND {given[1]}",
            )
        )

    def literal(self, type_: str) -> str:
        random = self._random
        if type_ == "timestamp":
            shown = (START + timedelta(seconds=random.choice((0, 2, 86400)))).replace(tzinfo=None)
            return random.choice(
                (
                    f"'{shown}'",
                    f"TIMESTAMP '{shown}'",
                    f"'{shown.date()}'",
                    f"CAST('{shown.date()}' AS TIMESTAMP)",
                    f"(TIMESTAMP '{shown}' - INTERVAL {random.randint(1, 90)} SECONDS)",
                    f"(TIMESTAMP '{shown}' + INTERVAL '1' DAY)",
                    "now()",
                )
            )
        if type_ == "string":
            return "'" + (random.choice(TEXTS) or "a").replace("\\", "").replace("'", "''") + "'"
        return str(random.choice((0, 1, 2, 127, 300, -5, 2**31, 2**63 - 1)))


def spark_answers(spark: SparkSession, query: CheckedQuery, file: Path) -> Any:
    """Return Spark's answer as JSON; None when it refuses the query."""
    for name, given in query.given.items():
        spark.sql(given.rows).createOrReplaceTempView(name)
    try:
        frame = spark.sql(query.sql)
        columns = tuple(shown(one.name, one.dataType.simpleString()) for one in frame.schema)
        frame = frame.toDF(*(f"c{number}" for number in range(len(columns))))
        rows = frame.selectExpr(
            *(
                f"to_json(c{number}, map('ignoreNullFields', 'false')) AS c{number}"
                if column.is_json
                else f"c{number}"
                for number, column in enumerate(columns)
            )
        )
        pq.write_table(rows.limit(ROWS + 1).toArrow(), file)
    except AnalysisException:
        return None
    finally:
        for name in query.given:
            spark.catalog.dropTempView(name)
    return read(columns, file)


def files_answer(tables: Tables, question: SmallQuestion, file: Path) -> Any:
    """Return the answer without Spark as JSON; None when a payload is for Spark."""
    types = [column.type for column in question.columns]
    sql = question.first(ROWS + 1)
    try:
        answer(tables, question.table, sql, types, ROWS + 1, file)
    except Unclear:
        assert "variant" in types
        return None
    return read(tuple(shown(one.name, one.type) for one in question.columns), file)


def shown(name: str, type_: str) -> ResultColumn:
    return ResultColumn(name, type_, type_ in ("variant", "array<bigint>"))


def read(columns: tuple[ResultColumn, ...], file: Path) -> Any:
    found = pq.read_metadata(file).num_rows
    result = Result(columns, (file,), min(found, ROWS), found > ROWS)
    return json.loads(b"".join(write(result, "json")))


def without_order(answered: Any) -> Any:
    rows = answered["rows"]
    counted = len(rows) if answered["truncated"] else Counter(map(json.dumps, rows))
    return {**answered, "rows": counted}


@pytest.mark.parametrize("part", range(4))
def test_what_is_answered_without_spark_is_what_spark_answers(
    folder: Path, spark: SparkSession, tmp_path: Path, part: int
) -> None:
    tables = Tables(folder)
    compared = 0
    for number in range(part, QUESTIONS, 4):
        query, is_ordered = Writer(Random(number)).query()
        checked = check(query, TENANT)
        assert checked.question is not None, query
        got = files_answer(tables, checked.question, tmp_path / "files.parquet")
        expected = spark_answers(spark, checked, tmp_path / "spark.parquet")
        if got is None or expected is None:
            continue
        compared += 1
        if not is_ordered:
            got, expected = without_order(got), without_order(expected)
        assert got == expected, f"{number}: {query}\n{checked.question.first(ROWS)}"
    assert compared > QUESTIONS / 4 / 2


@pytest.mark.campaign("the questions beside it are answered by both ways, too")
def test_payloads_are_shown_as_spark_shows_them(spark: SparkSession) -> None:
    made = {one for one in (*PAYLOADS, *json_texts(Random(3), 2_000)) if one is not None}
    shown = {}
    for payload in made:
        try:
            shown[payload] = as_variant(payload)
        except Unclear:
            continue
    frame = spark.createDataFrame([(bytearray(one),) for one in shown], "payload binary")
    text = "try_validate_utf8(CAST(payload AS STRING))"
    variant = f"coalesce(try_parse_json({text}), CAST({text} AS VARIANT))"
    rows = frame.selectExpr(
        "payload", f"to_json({variant}, map('ignoreNullFields', 'false')) AS shown"
    ).collect()
    assert len(shown) > len(made) * 0.4
    assert {bytes(row.payload): row.shown for row in rows} == shown


def json_texts(random: Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        text = json_text(random, 3)
        if random.random() < 0.1:
            at = random.randrange(len(text) + 1)
            text = (
                text[:at]
                + random.choice(("", ",", '"', "}", " ", "\\", "e5", "\x01"))
                + text[at + 1 :]
            )
        yield text.encode("utf-8", "surrogatepass")


def json_text(random: Random, depth: int) -> str:
    space = random.choice(("", "", " ", "\n\t"))
    if depth and random.random() < 0.4:
        names = [
            json.dumps(random.choice(TEXTS) or "k", ensure_ascii=random.random() < 0.5)
            for _ in range(random.randint(0, 4))
        ]
        fields = (f"{name}{space}:{json_text(random, depth - 1)}" for name in names)
        return f"{space}{{{(',' + space).join(fields)}}}"
    if depth and random.random() < 0.3:
        items = [json_text(random, depth - 1) for _ in range(random.randint(0, 4))]
        return f"[{(space + ',').join(items)}]"
    if random.random() < 0.1:
        return random.choice(("1E5", "1e-3", "0.1000000000000000000000001", str(10**30)))
    whole = random.choice((0, 7, -1, 10**18, 2**63 - 1, -(2**63)))
    return space + random.choice(
        (
            *("true", "false", "null", str(whole), f"{whole}.{random.randrange(10**6)}", "1.500"),
            *("0.000001", "-0", "-0.0", "100.00"),
            json.dumps(random.choice(TEXTS) or "", ensure_ascii=random.random() < 0.5),
        )
    )
