"""Our parser of queries against Spark's own: what is let through names the same to both.

`MQLAKE_SIMULATIONS=250000 bin/test tests/streaming/test_two_parsers.py` tries more of them.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from py4j.protocol import Py4JJavaError

from api.sql import running
from api.sql.checking import CheckedQuery, _Query, check
from api.sql.errors import QueryError
from tests.api.sql.test_checking import ALLOWED as LET_THROUGH
from tests.api.sql.test_checking import HOSTILE
from tests.ingest.simulations import simulations_wanted

pytestmark = [pytest.mark.promise, pytest.mark.spark]

DOCS: Final = Path(__file__).parents[2] / "docs"
TRIED: Final = 4_000
RESERVED: Final = "spark.sql.ansi.enforceReservedKeywords"
_TOKEN: Final = re.compile(r"'(?:[^'\\]|\\.)*'|`[^`]*`|\w+|\s+|[<>=!:|-]{2}|.", re.DOTALL)
_LISTED: Final = """
    SELECT FROM WHERE GROUP BY ORDER SORT CLUSTER DISTRIBUTE HAVING LIMIT OFFSET UNION ALL EXCEPT
    MINUS INTERSECT DISTINCT WITH AS ON USING JOIN LEFT RIGHT FULL OUTER INNER CROSS SEMI ANTI
    NATURAL LATERAL VIEW TABLE VALUES EXISTS IN NOT NULL IS LIKE RLIKE BETWEEN AND OR CASE WHEN THEN
    ELSE END CAST OVER PARTITION ROWS RANGE FILTER WINDOW VERSION TIMESTAMP OF FOR INTERVAL DAY
    PIVOT UNPIVOT TABLESAMPLE QUALIFY IDENTIFIER STREAM CUBE ROLLUP GROUPING SETS TRUE DATE MAP
    STRUCT ARRAY REDUCE MATERIALIZED RECURSIVE USER CURRENT_USER EXTRACT TRIM BOTH ANY SOME
    messages drops retained usage rule_x reference_x default.messages spark_catalog.default.messages
    default.audit_log a b x topic ts payload qos 1 '2' ( ) , . * : :: [ ] -> => | |> / + - = < ; `
    now() WEEK 999999 99999999999999999999 1e999 '9999-12-31'
    ( ) ( ) , , reflect(1) read_files('x') `select` `from` (SELECT /*+ -- */
"""
_WORDS: Final = _LISTED.split()
"""What queries are mixed with: words of both languages, names, and brackets."""


class SparkJudge:
    """Spark's parser in a JVM, and the check of what it makes of a text."""

    def __init__(self, jvm: Any) -> None:
        spark = jvm.org.apache.spark.sql
        self._parser = getattr(getattr(spark.catalyst.parser, "CatalystSqlParser$"), "MODULE$")
        self.conf = getattr(getattr(spark.internal, "SQLConf$"), "MODULE$").get()
        self._jvm = jvm

    def problem(self, sql: str, relations: Any, functions: Any, *, may_hint: bool = False) -> str:
        """Return what a text names beside these; empty: nothing, or it is no statement."""
        try:
            plan = self._parser.parsePlan(sql)
        except Py4JJavaError:
            return ""
        names = self._jvm.mqlake.spark.NamesCheck(set(functions), set(relations), may_hint)
        try:
            names.check(plan)
        except Py4JJavaError as exc:
            return str(exc.java_exception.getMessage())
        return ""

    def problem_of(self, query: CheckedQuery) -> str:
        """Return likewise what a query that was let through names, or one of its relations."""
        functions = running.FUNCTIONS
        problem = self.problem(query.sql, query.given, functions)
        for rows in query.given.values():
            problem = problem or self.problem(rows.rows, rows.reads, functions)
        return problem


@pytest.fixture(params=["false", "true"], ids=["lenient", "reserved"])
def judge(request: pytest.FixtureRequest, routing_jvm: Any) -> Iterator[SparkJudge]:
    made = SparkJudge(routing_jvm)
    made.conf.setConfString(RESERVED, request.param)
    yield made
    made.conf.unsetConf(RESERVED)


def examples() -> list[str]:
    """Return queries of the documents and of the checker's own tests."""
    found = [*LET_THROUGH, *HOSTILE]
    for page in sorted(DOCS.glob("*.md")):
        found += re.findall(r"^```sql\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return found


def mixed(chance: random.Random, known: list[str]) -> str:
    """Return a query in which some words are others, or two queries in one."""
    tokens = _TOKEN.findall(chance.choice(known))
    if chance.random() < 0.1:
        return "SELECT " + " ".join(chance.choices(_WORDS, k=chance.randint(3, 20)))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(tokens) + 1)
        change = chance.random()
        if change < 0.3:
            del tokens[at : at + 1]
        elif change < 0.45:  # brackets above all: without them there are other queries
            places = [place for place, token in enumerate(tokens) if token in "()"]
            if places:
                del tokens[chance.choice(places)]
        elif change < 0.75:
            tokens[at:at] = [" ", chance.choice(_WORDS), " "]
        elif change < 0.9:
            tokens[at : at + 1] = [" ", chance.choice(_WORDS), " "]
        else:
            other = _TOKEN.findall(chance.choice(known))
            begin = chance.randrange(len(other) + 1)
            tokens[at:at] = other[begin : begin + chance.randint(1, 12)]
    return "".join(tokens)


def let_through(seed: int, tried: int) -> Iterator[CheckedQuery]:
    """Yield those of many mixed queries that the checker lets through."""
    chance, known = random.Random(seed), examples()
    for _ in range(tried):
        text = mixed(chance, known)
        try:
            yield check(text, "acme", usage=lambda: "SELECT 'x' AS kind")
        except QueryError:
            continue


def test_what_is_let_through_names_to_spark_what_was_given(judge: SparkJudge) -> None:
    seed = random.randrange(1 << 32)
    found = 0
    for query in let_through(seed, simulations_wanted(TRIED)):
        found += 1
        problem = judge.problem_of(query)
        assert not problem, f"seed {seed}: {problem}: {query.text!r} -> {query.sql}"
    assert found > TRIED / 50, "too few are let through to say anything"


def test_a_query_that_spark_would_read_otherwise_is_found(
    routing_jvm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that the test above sees: without one check of ours it fails."""
    text = "WITH `select` AS (SELECT 1 AS z) SELECT b.* FROM SELECT a, default.messages AS b"
    judge = SparkJudge(routing_jvm)
    refused = "the statement reads default.messages, which was not given to it"
    passes = tuple(one for one in _Query.PASSES if one.__name__ != "check_queries")
    monkeypatch.setattr(_Query, "PASSES", passes)
    assert judge.problem_of(check(text, "acme")) == refused
