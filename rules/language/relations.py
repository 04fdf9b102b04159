"""The relations that a stateful rule reads, and their names in it.

A `Side` is a stream: expressions over its messages' rows, and the columns that its relation gets.
`JoinedScope` knows the names of all relations where they have come together: a column is carried
over from its side.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from rules.language.carrying import Projection, carried
from rules.language.choosing import all_of
from rules.language.compiled import Condition, Field
from rules.language.expressions import Expressions
from rules.language.limits import Limits
from rules.language.plan import HOPS, JoinedReference, StatefulStream, TypedColumn
from rules.language.scope import Scope, UnknownName
from rules.language.sources import RuleSource
from rules.language.values import Segment, Value, field_of, json
from rules.language.windows import Time  # noqa: TC001 - with the others
from rules.schemas.registry import Noted

_NO_FIELD: Final = "CAST(NULL AS VARIANT)"


class Side:
    """One stream of a rule.

    Args:
        sql: The rule's text.
        source: Its messages.
        name: Name of its relation.
        alias: Its name in the rule.
        limits: How large the rule may be.
        schemas: Schemas that can decode payloads.

    Attributes:
        relation: Relation that its columns are read from: its own, or the one of a detection.
        projection: The columns it gets.
        conditions: Conditions on its messages.
        time: Spark SQL of a message's time.
        may_lack: Whether a joined row may be without a message of it.
    """

    def __init__(
        self,
        sql: str,
        source: RuleSource,
        name: str,
        alias: str | None,
        limits: Limits,
        schemas: Noted,
    ) -> None:
        self.source = source
        self.name = name
        self.alias = alias
        self.relation = name
        self.projection = Projection()
        self.scope = Scope(source.columns, alias)
        self.expressions = Expressions(sql, self.scope, limits, schemas)
        self.expressions.is_grouped = True
        self.conditions: list[Condition] = []
        self.tests: list[str] = []
        self.time: Time | None = None
        self.lateness_ms: int | None = None
        self.size_ms = 0
        self.slide_ms = 0
        self.may_lack = False

    def position(self) -> tuple[str, str]:
        """Return the names of the columns that tell a message's position in the log."""
        partition = self.projection.add("INT", "log_partition")
        return partition, self.projection.add("BIGINT", "log_offset")

    def stream(self, used: frozenset[str]) -> StatefulStream:
        """Return the stream with those of its columns that are used."""
        assert self.time is not None
        lateness = self.time.lateness_ms if self.lateness_ms is None else self.lateness_ms
        condition = f"coalesce({all_of(self.tests)}, false)" if self.tests else "true"
        whole = self.expressions.schemas.whole
        columns = tuple(
            replace(one, expression=whole(one.expression))
            for one in self.projection.columns()
            if one.name in used
        )
        return StatefulStream(
            name=self.name,
            filters=self.source.filters,
            is_events=self.source.is_events,
            condition=whole(condition),
            columns=(*columns, TypedColumn(HOPS, "BIGINT", "0L")),
            event_time=whole(self.time.expression),
            is_receive_time=self.time.is_receive_time,
            lateness_ms=lateness,
            size_ms=self.size_ms,
            slide_ms=self.slide_ms,
        )


class ReferenceTable:
    """A reference table that a rule joins.

    Attributes:
        name: Name of its relation.
        table: Its identifier.
        alias: Its name in the rule.
        columns: Those it has; None when that is not known here.
        read: Those that the rule reads.
    """

    def __init__(
        self, name: str, table: str, alias: str, columns: tuple[tuple[str, str], ...] | None
    ) -> None:
        self.name = name
        self.table = table
        self.alias = alias
        self.columns = None if columns is None else tuple(column for column, _ in columns)
        self.read: dict[str, None] = {}

    def value(self, name: str, segments: Sequence[Segment]) -> Value:
        """Return a column.

        Raises:
            UnknownName: The table has no such column.
        """
        if self.columns is not None and name not in self.columns:
            hint = f"{self.table} has: {', '.join(self.columns)}"
            raise UnknownName(f"unknown column {self.alias}.{name[:100]}", hint)
        if not name.replace("_", "").isalnum() or not name.isascii():
            raise UnknownName(f"unknown column {self.alias}.{name[:100]}", "")
        self.read[name] = None
        value = json(f"CAST({self.name}.`{name}` AS VARIANT)", name=f"{self.alias}.{name}")
        for segment in segments:
            value = field_of(value, segment)
        return value

    def reference(self) -> JoinedReference:
        return JoinedReference(self.name, self.table, tuple(self.read))


class JoinedScope(Scope):
    """The names of a rule where its relations have come together.

    Args:
        sides: Its streams.
        tables: The reference tables it joins.
        told: Columns that a detection adds; no message has them.
    """

    def __init__(
        self, sides: Sequence[Side], tables: Sequence[ReferenceTable], told: dict[str, Value]
    ) -> None:
        super().__init__(())
        self._sides = sides
        self._tables = tables
        self._told = told
        self._origins: dict[str, str] = {}

    def origins(self, reads: Iterable[str]) -> frozenset[str]:
        """Return the names of the relations that fields belong to."""
        return frozenset(self._origins[name] for name in reads)

    def fields(self) -> Iterator[Field]:
        """Yield the fields that are read of messages."""
        for name, field in self.reads.items():
            if any(self._origins[name] == side.name for side in self._sides):
                yield field

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Let reads while the context is open leave no column behind."""
        lengths = [len(side.projection) for side in self._sides]
        yield
        for side, length in zip(self._sides, lengths, strict=True):
            side.projection.cut(length)

    def selected(self) -> Iterator[tuple[str, Value]]:
        """Yield the columns of the one stream."""
        (side,) = self._sides
        for column in side.source.columns:
            if column.is_selected:
                yield column.name, self._of_side(side, column.name, ())

    def value_of(self, name: str, segments: Sequence[Segment]) -> Value:
        aliased = self._aliased(name, segments)
        if aliased is not None:
            self._note(self._alias_reads[name])
            return aliased
        relation = self._relation(name)
        if relation is None:
            return self.column(name, segments)
        if not segments or not isinstance(segments[0], str):
            raise UnknownName(f"{name[:100]} is a source", "its columns are behind a dot")
        if isinstance(relation, Side):
            return self._of_side(relation, segments[0], segments[1:])
        value = relation.value(segments[0], segments[1:])
        self._note_of(relation.name, f"{name}.{segments[0]}", _NO_FIELD)
        return value

    def column(self, name: str, segments: Sequence[Segment]) -> Value:
        if name in self._told:
            value = self._told[name]
            self._note_of("", name, _NO_FIELD)
            for segment in segments:
                value = field_of(value, segment)
            return value
        if len(self._sides) == 1:
            return self._of_side(self._sides[0], name, segments)
        if any(column.name == name for side in self._sides for column in side.source.columns):
            either = " or ".join(f"{side.alias}.{name}" for side in self._sides)
            raise UnknownName(f"{name} of which source?", f"write {either}")
        sources = [side.alias for side in self._sides] + [table.alias for table in self._tables]
        raise UnknownName(
            f"unknown column {name[:100]}", f"sources are: {', '.join(map(str, sources))}"
        )

    def note_position(self) -> None:
        """Note that the position of the first stream's message is read."""
        side = self._sides[0]
        self._of_side(side, "timestamp" if side.source.is_events else "id", ())

    def _relation(self, name: str) -> Side | ReferenceTable | None:
        return next((one for one in self._relations() if one.alias == name), None)

    def _relations(self) -> list[Side | ReferenceTable]:
        return [*self._sides, *self._tables]

    def _of_side(self, side: Side, name: str, segments: Sequence[Segment]) -> Value:
        with side.scope.reading() as reads:
            value = side.scope.column(name, segments)
        for field in reads.values():
            shown = f"{side.alias}.{field.name}" if len(self._sides) > 1 else field.name
            self._note_of(side.name, shown, field.expression)
        return carried(value, side.projection, side.relation, may_lack=side.may_lack)

    def _note_of(self, relation: str, name: str, expression: str) -> None:
        self._origins[name] = relation
        self._note({name: Field(name, expression)})


class JoinedExpressions(Expressions):
    """Compiles the expressions of a rule where its relations have come together."""

    def __init__(self, sql: str, scope: JoinedScope, limits: Limits, first: Side) -> None:
        super().__init__(sql, scope, limits, first.expressions.schemas)
        self.scope = scope
        self._first = first

    def seed(self) -> str:
        """Return a seed that tells the call from others: by the message of the first stream."""
        _, *own = super().seed().split(", log_offset")
        positions = [f"{self._first.relation}.{name}" for name in self._first.position()]
        identifier = f"{self._first.relation}.{self._first.projection.add('STRING', 'id')}"
        return f"{identifier}, {', '.join(positions)}{own[0]}"
