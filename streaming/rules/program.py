"""From a rule's definition to what the engine evaluates: the language's compiler, then Catalyst."""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from mqlake.tables import RULE_TABLE_COLUMNS, RULE_TABLE_PREFIX
from rules.errors import RuleError
from rules.language import compile_rule
from rules.model import ActionSpec, Rule
from streaming.rules.changes import Program

Compile = Callable[[Rule], Program]

_NOT_IN_NAMES: Final = re.compile(r"[ ,;{}()\n\t=]")
"""What Delta takes in no name of a column."""
_COMPILER_CLASS: Final = "mqlake.streaming.RuleCompiler"


class TableAction(NamedTuple):
    """That the rows of a version of a rule go to a table."""

    table: str
    schema: str
    """DDL of a row."""


class Programs:
    """Compiles definitions in the driver's JVM; an executor there finds the code ready.

    Args:
        spark: Its JVM has our classes on the class path.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._compiler = getattr(spark.sparkContext._jvm, _COMPILER_CLASS)
        self._code: dict[tuple[str, str], Any] = {}
        """Java objects; the compiler forgets what nobody holds."""

    def __call__(self, rule: Rule) -> Program:
        """Compile a rule.

        Raises:
            RuleError: It is not a statement, or Spark does not take what it means.
        """
        compiled = compile_rule(rule.sql)
        try:
            code = self._compiler.compile(compiled.expression)
        except Py4JJavaError as exc:
            reason = exc.java_exception.getMessage()
            raise RuleError(f"Spark does not take the statement: {reason}") from exc
        self._code[rule.tenant, rule.id] = code
        actions = rule.actions
        schema = code.schema() if needs_schema(actions) else None
        if schema is not None:
            check_names(compiled.columns)
        return Program(
            filters=compiled.filters,
            is_events=compiled.is_events,
            expression=compiled.expression,
            actions=tuple(action.model_dump(mode="json") for action in actions),
            schema=schema,
        )


def check_names(columns: tuple[str, ...]) -> None:
    """Refuse rows that a table cannot hold.

    Raises:
        RuleError: Two columns have one name, or one of ours.
    """
    for name in columns:
        if _NOT_IN_NAMES.search(name):
            raise RuleError(
                f"the table cannot have a column {name!r}: no blank and none of ,;{{}}()= in names",
                fragment=name,
                hint="name it otherwise with AS",
            )
    ours = {column.name for column in RULE_TABLE_COLUMNS}
    seen: set[str] = set()
    for name in dict.fromkeys(column.partition(".")[0] for column in columns):
        lower = name.lower()
        if lower in ours or lower in seen:
            whose = "every table of rules has" if lower in ours else "two columns have"
            raise RuleError(
                f"the table cannot have a column {name}: {whose} that name",
                fragment=name,
                hint="name it otherwise with AS",
            )
        seen.add(lower)


def needs_schema(actions: tuple[ActionSpec, ...]) -> bool:
    """Tell whether one of the actions writes to a table."""
    return any(action.function == "table" for action in actions)


def table_actions(
    actions: tuple[dict[str, Any], ...], schema: str | None
) -> tuple[TableAction, ...]:
    """Return the actions of a version that write to tables."""
    found = []
    for action in actions:
        args = action.get("args")
        if action.get("function") == "table" and schema and isinstance(args, dict):
            found.append(TableAction(RULE_TABLE_PREFIX + str(args["name"]), schema))
    return tuple(found)
