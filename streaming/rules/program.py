"""From a rule's definition to the engine's program: the language's compiler, then Catalyst."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from mqlake.records.references import Columns
from mqlake.tables.catalogue import RULE_TABLE_COLUMNS, RULE_TABLE_PREFIX
from rules.errors import RuleError
from rules.language.compiled import CompiledRule
from rules.language.compiler import compile_rule
from rules.language.plan import DETECTED, Plan, encode_plan
from rules.model import ActionSpec, Rule
from rules.schemas.registry import NO_SCHEMAS, SchemaLookup
from rules.sql.confined import FUNCTIONS_OPTION, Confined, GivenRows, listed
from rules.sql.functions import RULE_FUNCTIONS
from streaming.jvm.bridge import JavaError, analyzed_plan, java_class, reason_of
from streaming.rules.changes import RuleProgram
from streaming.rules.plans import (
    COMPILER_CLASS,
    DETECTED_COLUMNS,
    compile_stream,
    log_topic,
    stream_columns,
)

Compile = Callable[[Rule, SchemaLookup, Mapping[str, Columns]], RuleProgram]
"""From a definition, the schemas and the columns of the reference tables there are."""

_NOT_IN_NAMES: Final = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Delta takes in no name of a column."""
TABLE_FUNCTION: Final = "table"


class TableAction(NamedTuple):
    """That the rows of a version of a rule go to a table."""

    table: str
    schema: str
    """DDL of a row."""
    action: int
    """Index in the rule."""
    is_fallback: bool = False
    """Only of the outputs that the runner hands over."""


class Programs:
    """Compiles definitions in the driver's JVM; an executor there finds them ready.

    Args:
        spark: Its JVM has our classes on the class path.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._compiler = java_class(spark, COMPILER_CLASS)
        self._code: dict[tuple[str, str], Any] = {}
        """Java objects; the compiler forgets those without a reference."""

    def __call__(
        self,
        rule: Rule,
        schemas: SchemaLookup = NO_SCHEMAS,
        references: Mapping[str, Columns] | None = None,
    ) -> RuleProgram:
        """Compile a rule.

        Args:
            rule: Its definition.
            schemas: By which payloads are decoded.
            references: Columns of each table that it may join; None: not checked.

        Raises:
            RuleError: It is not a statement, or Spark does not take its meaning.
        """
        compiled = compile_rule(rule.sql, references, schemas=schemas)
        actions = rule.actions
        schema = self._schema(rule, compiled, references or {})
        if not needs_schema(actions):
            schema = None
        if schema is not None:
            check_names(compiled.columns)
        plan = compiled.plan
        sources = None if plan is None else tuple(dict.fromkeys(map(log_topic, plan.streams)))
        return RuleProgram(
            filters=compiled.filters,
            is_events=compiled.is_events,
            expression=compiled.expression,
            actions=tuple(action.model_dump(mode="json") for action in actions),
            schema=schema,
            plan=None if plan is None else encode_plan(plan),
            sources=sources,
        )

    def _schema(
        self, rule: Rule, compiled: CompiledRule, references: Mapping[str, Columns]
    ) -> str | None:
        """Return the columns of the rule's rows, as Spark understands the statement."""
        try:
            if compiled.plan is not None:
                return self._analyze(compiled.plan, references)
            code = self._compiler.compile(compiled.expression)
            self._code[rule.tenant, rule.id] = code
            schema: str | None = code.schema()
            return schema
        except JavaError as exc:
            raise RuleError(f"Spark does not take the statement: {reason_of(exc)}") from exc
        except AnalysisException as exc:
            reason = str(exc).partition("\n")[0]
            raise RuleError(f"Spark does not take the statement: {reason}") from exc

    def _analyze(self, plan: Plan, references: Mapping[str, Columns]) -> str | None:
        """Let Spark look at a plan; return the schema of its rows."""
        for stream in plan.streams:
            compile_stream(self._spark, stream)
        session = self._spark.newSession()
        session.conf.set(FUNCTIONS_OPTION, listed(RULE_FUNCTIONS))
        rows = session.sql(_over_nothing(plan, references).text)
        found: str | None = self._compiler.querySchema(analyzed_plan(rows))
        return found


def _over_nothing(plan: Plan, references: Mapping[str, Columns]) -> Confined:
    """Return the query of a plan over relations without rows."""
    relations = {stream.name: stream_columns(stream) for stream in plan.streams}
    for one in plan.references:
        unchecked = tuple((column, "STRING") for column in one.columns)
        relations[one.name] = dict(references.get(one.table, unchecked))
    if plan.detection is not None:
        relations[DETECTED] = relations[plan.detection.stream] | DETECTED_COLUMNS
    given = {}
    for name, columns in relations.items():
        listed = ", ".join(f"CAST(NULL AS {type_}) AS `{name}`" for name, type_ in columns.items())
        given[name] = GivenRows(f"SELECT {listed} WHERE false")
    return Confined(plan.query, given)


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
    """Tell whether one of the actions, or a fallback, writes to a table."""
    return any(
        one.function == TABLE_FUNCTION for action in actions for one in (action, *action.fallback)
    )


def table_actions(
    actions: tuple[dict[str, Any], ...], schema: str | None
) -> tuple[TableAction, ...]:
    """Return the actions of a version, and their fallbacks, that write to tables."""
    found = []
    for index, action in enumerate(actions):
        for number, one in enumerate((action, *action.get("fallback", ()))):
            args = one.get("args")
            if one.get("function") == TABLE_FUNCTION and schema and isinstance(args, dict):
                table = RULE_TABLE_PREFIX + str(args["name"])
                found.append(TableAction(table, schema, index, is_fallback=number > 0))
    return tuple(found)
