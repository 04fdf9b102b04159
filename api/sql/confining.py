"""Confining a query to rows: the names of its tables become those of relations that are given.

Each relation comes with the SELECT of the rows that the caller may see (`rules.sql.confined`); to
Spark the query may name nothing else.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from api.relations.views import (
    BY_NAME,
    CATALOG_SCHEMA,
    TENANT,
    TOPIC_MATCHES,
    reference_view_select,
    rule_view_select,
    view_select,
)
from api.sql.dialect import to_sql
from api.sql.errors import QueryError
from api.sql.usage import NAME as USAGE
from mqlake.records.references import reference_table
from mqlake.records.rule_tables import rule_table
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.tables.catalogue import AUDIT_LOG, FOR_ADMINISTRATORS, OF_TOPICS, RULE_TABLE_PATTERN
from rules.sql.confined import GivenRows
from rules.sql.errors import did_you_mean
from rules.sql.functions import TABLE_FUNCTIONS
from rules.sql.names import folded
from rules.sql.quoting import quoted
from rules.sql.reading import Reading, kind_of

MOST_CHARACTERS: Final = 50_000
MOST_DEPTH: Final = 60
MOST_RELATIONS: Final = 16
"""Each is read by tasks of its own."""
_REFERENCE_TABLE: Final = re.compile(r"reference_((?!\w*__)[a-z][a-z0-9_]{0,62})")
_NAMED_SUFFIXES: Final = ("sample", "pivots", "hints", "partition", "changes", "when", "only")
_SUFFIXES: Final = ("ordinality", "rows_from", "format", "pattern", "file_format", "indexed")
"""Clauses that sqlglot knows behind a table's name, and queries do not."""
_AROUND_QUERIES: Final = (exp.Subquery, exp.CTE, exp.SetOperation, exp.Exists)
_VERSION_MARK: Final = "@"
"""Between the name of a table and the number of one of its versions in a query."""


def _within(column: str, topic_filter: str) -> str:
    """Return the condition that all that a topic name, or filter, stands for is of a filter.

    Read as a name, a filter is matched by those that cover it, but for one that ends on `#`, a
    level that a `+` would match.
    """
    matches = f"{CATALOG_SCHEMA}.{TOPIC_MATCHES}(`{column}`, {quoted(topic_filter)})"
    if topic_filter.endswith("#"):
        return matches
    return f"({matches} AND right(`{column}`, 1) <> '#')"


def _is_named_by_with(table: exp.Table) -> bool:
    """Tell whether a WITH gives the name, and the name is within its scope.

    That is the query that the WITH heads, with all queries inside, and those later in the WITH.
    """
    name = folded(table.name)
    inside: exp.Expr = table
    while (around := inside.parent) is not None:
        head = around.args.get("with_")
        if isinstance(around, exp.With):
            ctes = around.expressions[: inside.index]
        else:
            ctes = head.expressions if head and head is not inside else []
        if any(folded(cte.alias) == name for cte in ctes):
            return True
        inside = around
    return False


class Confinement:
    """Confines one query to the rows that its caller may see; arguments as of `checking.check`.

    Attributes:
        given: Its relations by the names that it has for Spark: of a table, and of its versions.
        travels: SQL of the values behind AS OF, which go into these.

    Args:
        reading: The query, which is parsed before the passes.
    """

    def __init__(
        self,
        reading: Reading,
        tenant: str,
        *,
        is_administrator: bool,
        is_for_all: bool,
        topic_filters: Sequence[str] | None,
        usage: Callable[[], str] | None,
    ) -> None:
        self._reading = reading
        self._tenant = tenant
        self._is_administrator = is_administrator
        self._is_for_all = is_for_all
        self._topic_filters = topic_filters
        self._usage = usage
        self.given: dict[str, GivenRows] = {}
        self.travels: list[str] = []

    # Passes

    def check_queries(self) -> None:
        """Refuse queries of which Spark may make something else.

        Those are a query within a query that no parentheses mark, and one of no columns.
        """
        for query in self._reading.tree.find_all(exp.Query):
            around = query.parent
            is_marked = (
                around is None
                or isinstance(query, exp.Subquery)
                or isinstance(around, _AROUND_QUERIES)
                # EXISTS of a query that begins with a bracket is a call to our parser.
                or (isinstance(around, exp.Anonymous) and around.name.lower() == "exists")
            )
            if isinstance(query, exp.Select) and not query.expressions:
                self._reading.fail(query, "SELECT takes at least one column")
            if not is_marked:
                self._reading.fail(query, "a query within another one stands in parentheses")

    def check_ctes(self) -> None:
        """Refuse the name of a table for a query of WITH: one would be taken for the other."""
        for cte in self._reading.tree.find_all(exp.CTE):
            name = folded(cte.alias).partition(_VERSION_MARK)[0]
            if not name:
                self._reading.fail(cte, "a query of WITH has a name")
            is_table = re.fullmatch(RULE_TABLE_PATTERN, name) or name.startswith("reference_")
            if name in BY_NAME or name == USAGE or is_table:
                self._reading.fail(cte.args["alias"], f"{cte.alias} is the name of a table")

    def confine(self) -> None:
        """Put the rows in the place of each table."""
        tables = list(self._reading.tree.find_all(exp.Table))
        if len(tables) > MOST_RELATIONS:
            raise QueryError(
                f"the query reads {len(tables)} tables, at most {MOST_RELATIONS} may be"
            )
        for table in tables:
            self._resolve(table)

    # Tables

    def _resolve(self, table: exp.Table) -> None:
        for kind in _NAMED_SUFFIXES:
            if table.args.get(kind):
                self._reading.fail(table, f"{kind} of a table is not supported")
        if any(map(table.args.get, _SUFFIXES)):
            self._reading.fail(table, "this is not supported after a table")
        if not isinstance(table.this, exp.Identifier):
            self._check_table_function(table)
            return
        name = folded(table.name)
        travel = self._time_travel(table.args.get("version"))
        if not table.db and not table.catalog and _is_named_by_with(table):
            if travel:
                self._reading.fail(table, f"{table.name} is no table and has no versions")
            return
        rows = self._rows(table, name, travel)
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(name)))
        table.this.set("this", self._give(name, rows))
        for part in ("db", "catalog", "version"):
            table.set(part, None)

    def _give(self, name: str, rows: GivenRows) -> str:
        """Give rows to the query; return their name there."""
        number, known = 0, name
        while self.given.setdefault(known, rows) != rows:
            number += 1
            known = f"{name}{_VERSION_MARK}{number}"
        return known

    def _rows(self, table: exp.Table, name: str, travel: str) -> GivenRows:
        """Return the rows of a table that the caller may see."""
        is_ours = table.catalog == "" and folded(table.db) in ("", "default")
        mine = self._mine(name)
        if self._topic_filters is not None:
            if not is_ours or name not in OF_TOPICS:
                words = f"with rights to some topics alone one may query {', '.join(OF_TOPICS)}"
                self._reading.fail(table.this, words)
            allowed = [_within(OF_TOPICS[name], one) for one in self._topic_filters]
            mine += f" AND ({' OR '.join(['false', *allowed])})"
        if is_ours and name in FOR_ADMINISTRATORS and not self._is_administrator:
            self._reading.fail(table.this, f"the table {name} is for administrators")
        if is_ours and name in BY_NAME:
            select = view_select(BY_NAME[name], time_travel=travel, where=mine)
            return GivenRows(select, (f"{CATALOG_SCHEMA}.{name}",))
        if is_ours and re.fullmatch(RULE_TABLE_PATTERN, name):
            select = rule_view_select(self._tenant, name, time_travel=travel, where=mine)
            return GivenRows(select, (f"{CATALOG_SCHEMA}.{rule_table(self._tenant, name)}",))
        if is_ours and (found := _REFERENCE_TABLE.fullmatch(name)):
            select = reference_view_select(self._tenant, found[1], time_travel=travel)
            return GivenRows(
                select, (f"{CATALOG_SCHEMA}.{reference_table(self._tenant, found[1])}",)
            )
        if is_ours and name == USAGE and self._usage is not None:
            if travel:
                self._reading.fail(table, f"{name} is no table and has no versions")
            return GivenRows(self._usage())
        shown = ".".join(part.name for part in table.parts)
        known = [*BY_NAME, USAGE]
        meant = did_you_mean(shown, known)
        there_are = f"{', '.join(known)}, rule_<name>, reference_<id>"
        hint = f"{meant} There are: {there_are}" if meant else there_are
        raise QueryError.at_node(self._reading.text, table.this, f"there is no table {shown}", hint)

    def _mine(self, name: str) -> str:
        """Return the condition for the rows of a table that are the tenant's."""
        mine = f"{TENANT} = {quoted(self._tenant)}"
        if name != AUDIT_LOG.name:
            return mine
        # Names of tenants hold no quotes.
        found = f"contains(tenants, {quoted(json.dumps(self._tenant))})"
        if self._is_for_all:
            return f"({mine} OR {found} OR tenants = '[]')"
        if self._tenant == DEFAULT_TENANT:
            return found  # it was that of rows of no tenant, too
        return f"({found} OR tenants IS NULL AND {mine})"

    def _time_travel(self, version: exp.Expr | None) -> str:
        if version is None:
            return ""
        kind = str(version.this).upper()
        wanted = version.args.get("expression")
        if kind not in ("VERSION", "TIMESTAMP") or version.args.get("kind") != "AS OF":
            self._reading.fail(version, "expected VERSION AS OF or TIMESTAMP AS OF")
        if wanted is None or wanted.find(exp.Column, exp.Query, exp.Table):
            self._reading.fail(version, f"{kind} AS OF takes a value, not a column or a query")
        is_number = isinstance(wanted, exp.Literal) and not wanted.is_string
        if kind == "VERSION" and not (is_number and re.fullmatch("[0-9]{1,18}", str(wanted.this))):
            self._reading.fail(version, "VERSION AS OF takes the number of a version")
        at = to_sql(wanted)
        self.travels.append(at)
        return f"{kind} AS OF {at}"

    def _check_table_function(self, table: exp.Table) -> None:
        name = table.this.name.lower() if isinstance(table.this, exp.Anonymous) else ""
        if table.db or table.catalog or name not in TABLE_FUNCTIONS:
            self._reading.fail(
                table.this,
                f"table function {name or kind_of(table.this)} is not allowed here",
                f"{', '.join(sorted(TABLE_FUNCTIONS))}",
            )
