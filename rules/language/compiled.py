"""Results of compiling a rule."""

from dataclasses import dataclass

from rules.language.plan import Plan
from rules.schemas.registry import SchemaUse


@dataclass(frozen=True, slots=True)
class Field:
    """A column or a field of the payload that the rule reads.

    Attributes:
        name: As the rule writes it: `payload.a.b`, `clientid`.
        expression: Spark SQL of its value: a VARIANT for fields, else the column's own type. NULL
            when the message has no such field.
    """

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the conditions that WHERE joins with AND.

    Attributes:
        text: As the rule writes it.
        expression: Spark SQL, BOOLEAN without NULL.
        fields: Fields that it reads.
    """

    text: str
    expression: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule ready to be evaluated.

    Attributes:
        filters: Topic filters, or `$events/<name>` in the spelling with `_`.
        is_events: Whether the filters name events instead of topics.
        expression: Spark SQL over `rules.columns.ROW`, ARRAY<STRING>: the output rows, each a JSON
            object. NULL or empty when the message gives no row; it throws when the rule fails.
            None of a stateful rule, which has a plan.
        conditions: WHERE taken apart, in the order written; of a plan the conditions on single
            messages.
        fields: All columns and fields read.
        columns: The keys of an output row, in order; dotted where AS nests them.
        deterministic: Whether the same message always gives the same; so it is, as times and random
            numbers are made of the message.
        schemas: Schemas that decode payloads.
        plan: Plan of a stateful rule; None: it has no state.
    """

    filters: tuple[str, ...]
    is_events: bool
    expression: str | None
    conditions: tuple[Condition, ...]
    fields: tuple[Field, ...]
    columns: tuple[str, ...] = ()
    deterministic: bool = True
    schemas: tuple[SchemaUse, ...] = ()
    plan: Plan | None = None
