"""The SQL of queries as a dialect of sqlglot: Spark's, with `payload:a.b[0]` and `x::type`.

Functions stay calls by name: sqlglot knows many and would write some of them otherwise. The SQL for
Spark is made from the tree alone, one line without comments of the user, each text escaped, each
name quoted. Before a name stands a comment that says where it was in the user's text: so errors of
Spark's find their place.
"""

import re
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.databricks import Databricks
from sqlglot.generators.databricks import DatabricksGenerator
from sqlglot.parsers.databricks import DatabricksParser

from rules.sql.quoting import quoted, quoted_name, variant_path

PLACE: Final = re.compile(r"/\*@(\d+)\*/")
"""Offset of the first character in the user's text."""

_RESERVED: Final = ("any", "some", "current_timestamp", "current_date")
"""Functions that are reserved words to Spark."""
_KEPT_PARSERS: Final = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "POSITION", "SUBSTRING", "SUBSTR")


class Verbatim(exp.Expression):
    """SQL made by us."""

    arg_types = {"this": True}  # noqa: RUF012 - sqlglot's declaration


def place(node: exp.Expr) -> str:
    """Return the comment that says where a name was."""
    start = node.meta.get("start")
    return "" if start is None else f"/*@{start}*/"


def is_text(node: exp.Expr) -> bool:
    """Tell whether a node is a text written out."""
    return isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string)


def path_of(node: exp.Expr) -> list[str | int] | None:
    """Return keys and indexes of a path after a colon; None when it has wildcards, say."""
    segments: list[str | int] = []
    for part in node.expressions:
        if isinstance(part, exp.JSONPathRoot):
            continue
        key = part.this
        is_key = isinstance(part, exp.JSONPathKey) and isinstance(key, str)
        is_index = isinstance(part, exp.JSONPathSubscript) and isinstance(key, int) and key >= 0
        if not (is_key or is_index):
            return None
        segments.append(key)
    return segments


class HistoryParser(DatabricksParser):
    FUNCTIONS = {}  # noqa: RUF012 - sqlglot's declarations, here and below
    ARRAY_CONSTRUCTORS = {}  # noqa: RUF012
    NO_PAREN_FUNCTION_PARSERS = {  # noqa: RUF012
        name: DatabricksParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("CASE", "IF")
    }
    FUNCTION_PARSERS = {  # noqa: RUF012
        name: parser
        for name, parser in DatabricksParser.FUNCTION_PARSERS.items()
        if name in _KEPT_PARSERS
    }


class HistoryGenerator(DatabricksGenerator):
    # Each WITH stays with its query: at the top its names would count in the whole statement.
    EXPRESSIONS_WITHOUT_NESTED_CTES = set()  # noqa: RUF012
    TRANSFORMS = {  # noqa: RUF012
        **{
            kind: write
            for kind, write in DatabricksGenerator.TRANSFORMS.items()
            if kind not in (exp.JSONExtract, exp.StrPosition)
        },
        Verbatim: lambda _self, node: node.this,
        # As a name: reserved words are no functions.
        exp.CurrentTimestamp: lambda _self, _node: "`current_timestamp`()",
        # None of sqlglot's changes of a SELECT for other databases.
        exp.Select: lambda self, node: self.select_sql(node),
    }

    def literal_sql(self, expression: exp.Literal) -> str:
        return quoted(expression.this) if expression.is_string else str(expression.this)

    def rawstring_sql(self, expression: exp.RawString) -> str:
        return quoted(expression.this)

    def identifier_sql(self, expression: exp.Identifier) -> str:
        return place(expression) + quoted_name(expression.this)

    def anonymous_sql(self, expression: exp.Anonymous) -> str:
        arguments = ", ".join(self.sql(argument) for argument in expression.expressions)
        made_by_us = isinstance(expression.this, Verbatim)
        name = self.sql(expression, "this") if made_by_us else expression.name.lower()
        name = quoted_name(name) if name in _RESERVED else name
        return f"{place(expression)}{name}({arguments})"

    def group_sql(self, expression: exp.Group) -> str:
        # ALL is a name to Spark here, and a reserved word.
        written: str = super().group_sql(expression)
        return written.replace("GROUP BY ALL", "GROUP BY `ALL`", 1)

    def strposition_sql(self, expression: exp.StrPosition) -> str:
        searched = self.sql(expression, "substr"), self.sql(expression, "this")
        return f"position({', '.join(searched)})"

    def lateral_sql(self, expression: exp.Lateral) -> str:
        if not expression.args.get("view"):
            return str(super().lateral_sql(expression))
        alias = expression.args["alias"]
        # Spark would take AS for the name.
        table = f" {self.sql(alias, 'this') if alias.this else quoted_name('view')}"
        columns = ", ".join(self.sql(column) for column in alias.columns)
        named = f" AS {columns}" if columns else ""
        outer = " OUTER" if expression.args.get("outer") else ""
        return f" LATERAL VIEW{outer} {self.sql(expression, 'this')}{table}{named}"

    def jsonextract_sql(self, expression: exp.JSONExtract) -> str:
        segments = path_of(expression.expression)
        assert segments is not None  # checked before
        return f"variant_get({self.sql(expression, 'this')}, {variant_path(segments)}, 'variant')"


class HistoryDialect(Databricks):
    """sqlglot's dialect of users' queries."""

    class Tokenizer(Databricks.Tokenizer):
        STRING_ESCAPES = ["\\", "'"]  # noqa: RUF012

    Parser = HistoryParser
    Generator = HistoryGenerator


DIALECT: Final[Any] = HistoryDialect()


def to_sql(node: exp.Expr) -> str:
    """Write a tree for Spark."""
    generator = DIALECT.generator(comments=False, pretty=False, unsupported_level=None)
    return str(generator.generate(node, copy=False))
