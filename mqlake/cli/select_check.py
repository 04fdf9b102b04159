"""What `mqlake sql` lets through: one query, over our tables only.

Spark has functions that call any Java method, and takes paths for tables; neither is let through.
"""

import logging
import re
from collections.abc import Iterator
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from mqlake.errors import MqlakeError
from mqlake.tables import RULE_TABLE_PATTERN, TABLES

TABLE_NAMES: Final = tuple(table.name for table in TABLES)
TABLE_FUNCTIONS: Final = frozenset(
    {"range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "stack"}
)
REFUSED_FUNCTIONS: Final = frozenset(
    # Run code, take names from text, or read files that are named in their arguments.
    {"java_method", "reflect", "try_reflect", "identifier", "from_protobuf", "to_protobuf"}
)
_REFUSED_NODES: Final = (exp.QueryTransform, exp.Command, exp.DML, exp.DDL)
_SCHEMAS: Final = frozenset({"", "default"})


class QueryError(MqlakeError):
    """A query that is refused or does not parse; the message says where."""


def check_select(sql: str) -> None:
    """Accept exactly one query that reads only our tables.

    Raises:
        QueryError: It is anything else.
    """
    statement = _parse(sql)
    if not isinstance(statement, exp.Query):
        raise QueryError(f"the statement is {_what(statement)}, expected a SELECT")
    named_here = {cte.alias.lower() for cte in statement.find_all(exp.CTE)}
    for node in statement.walk():
        if isinstance(node, exp.Table):
            _check_table(node, named_here)
        elif isinstance(node, exp.Anonymous) and node.name.lower() in REFUSED_FUNCTIONS:
            raise QueryError(f"function {node.name} is not allowed here{_where(node)}")
        elif isinstance(node, _REFUSED_NODES) and not isinstance(node, exp.Query):
            raise QueryError(f"{_what(node)} is not allowed in a query{_where(node)}")


def _parse(sql: str) -> exp.Expr:
    # It reports statements that it only knows by name; here they are refused anyway.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        statements = [statement for statement in sqlglot.parse(sql, read="spark") if statement]
    except ParseError as exc:
        problem = exc.errors[0]
        near = problem.get("highlight") or problem.get("start_context") or ""
        raise QueryError(
            f"the query does not parse at line {problem.get('line')}, column {problem.get('col')}, "
            f"near {near.strip()!r}"
        ) from exc
    except TokenError as exc:
        # The cause reads "Missing ' from 2:7".
        reason, _, position = str(exc.__cause__ or exc).rpartition(" from ")
        line, _, column = position.partition(":")
        raise QueryError(
            f"the query does not parse at line {line}, column {column}: {reason.lower()}"
        ) from exc
    if len(statements) != 1:
        raise QueryError(f"got {len(statements)} statements, expected one SELECT")
    return statements[0]


def _check_table(table: exp.Table, named_here: set[str]) -> None:
    if not isinstance(table.this, exp.Identifier):
        function = table.this
        names = set(_function_names(function))
        if not names & TABLE_FUNCTIONS:
            name = min(names, default=_what(function))
            raise QueryError(f"table function {name} is not allowed here{_where(function)}")
        return
    name = table.name.lower()
    if table.catalog == "" and table.db == "" and name in named_here:
        return
    is_known = name in TABLE_NAMES or re.fullmatch(RULE_TABLE_PATTERN, name)
    if table.catalog or table.db.lower() not in _SCHEMAS or not is_known:
        shown = ".".join(part.name for part in table.parts)
        raise QueryError(
            f"there is no table {shown}{_where(table.this)}; tables: "
            f"{', '.join(TABLE_NAMES)}, rule_<name>"
        )


def _function_names(function: exp.Expr) -> Iterator[str]:
    if isinstance(function, exp.Anonymous):
        yield function.name.lower()
    elif isinstance(function, exp.Func):
        yield from (name.lower() for name in function.sql_names())


def _what(node: exp.Expr) -> str:
    return type(node).__name__.upper()


def _where(node: exp.Expr) -> str:
    """Say where a node is; the parser notes it at identifiers and names of functions only."""
    for part in (node, *node.find_all(exp.Identifier)):
        if "line" in part.meta:
            start = int(part.meta["col"]) - (int(part.meta["end"]) - int(part.meta["start"]))
            return f" (line {part.meta['line']}, column {start})"
    return ""
