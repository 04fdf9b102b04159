"""Names: which expression a name of the rule stands for."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rules.columns import RuleColumn
from rules.language.compiled import Field
from rules.language.output import Tree, put, structure
from rules.language.values import (
    Segment,
    Value,
    ValueKind,
    as_output,
    field_of,
    json,
    shown_segment,
)
from rules.sql.errors import did_you_mean
from rules.sql.quoting import quoted

_KINDS = {
    "text": ValueKind.TEXT,
    "binary": ValueKind.BINARY,
    "integer": ValueKind.INTEGER,
    "boolean": ValueKind.BOOLEAN,
    "json": ValueKind.JSON,
}

_PROPERTY_NAMES = {
    "Payload-Format-Indicator": "payload_format_indicator",
    "Message-Expiry-Interval": "message_expiry_interval",
    "Content-Type": "content_type",
    "Response-Topic": "response_topic",
    "Correlation-Data": "correlation_data",
    "Subscription-Identifier": "subscription_identifier",
    "Topic-Alias": "topic_alias",
}
"""EMQX's names of properties, and theirs in the record."""

_PAIRS = "array<array<string>>"


class UnknownName(Exception):  # noqa: N818 - it names the problem
    """A name that stands for nothing; `hint` may name the one that was meant."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class Scope:
    """The names of one rule: its columns, and those it gives itself, which come first.

    Args:
        columns: Columns of its source.
        source: The name that the rule gives its source, `a` in `a.payload.x`.
    """

    def __init__(self, columns: Iterable[RuleColumn], source: str | None = None) -> None:
        self._source = source
        self._hidden: dict[str, str] = {}
        self._columns = {column.name: column for column in columns}
        self._aliases: Tree = {}
        self._alias_reads: dict[str, dict[str, Field]] = {}
        self._item: tuple[str, ...] = ()
        self._item_value: Value | None = None
        self._payload: Value | None = None
        self._reading: dict[str, Field] = {}
        self.reads: dict[str, Field] = {}

    @contextmanager
    def reading(self) -> Iterator[dict[str, Field]]:
        """Collect the fields that are read while the context is open."""
        outer, self._reading = self._reading, {}
        try:
            yield self._reading
        finally:
            outer.update(self._reading)
            self._reading = outer

    def give(self, path: Sequence[str], value: Value, reads: dict[str, Field]) -> None:
        """Let a name stand for a value from here on."""
        put(self._aliases, path, value)
        self._alias_reads.setdefault(path[0], {}).update(reads)

    def hide(self, name: str, problem: str) -> None:
        """Say why a name that the rule gives stands for nothing here."""
        self._hidden[name] = problem

    def give_item(self, names: Iterable[str], value: Value) -> None:
        """Let names stand for the element that FOREACH is at."""
        self._item = tuple(names)
        self._item_value = value

    def give_payload(self, value: Value) -> None:
        """Let the payload stand for its decoded value."""
        self._payload = value

    def selected(self) -> Iterator[tuple[str, Value]]:
        """Yield the items of `*`: the columns, in FOREACH also given names and the element."""
        for name, column in self._columns.items():
            if column.is_selected:
                yield name, self.column(name, ())
        if self._item_value is not None:
            for name in (*self._aliases, *self._item):
                yield name, self.value_of(name, ())

    def value_of(self, name: str, segments: Sequence[Segment]) -> Value:
        """Return the value of a name with fields and indexes.

        Raises:
            UnknownName: Nothing.
        """
        if self._item_value is not None and name in self._item:
            return _inside(self._item_value, segments)
        aliased = self._aliased(name, segments)
        if aliased is not None:
            self._note(self._alias_reads[name])
            return aliased
        if name == self._source and segments and isinstance(segments[0], str):
            return self.column(segments[0], segments[1:])
        return self.column(name, segments)

    def column(self, name: str, segments: Sequence[Segment]) -> Value:
        """Return a column, or a field of it, also where the rule gives its name to another.

        Raises:
            UnknownName: There is no such column.
        """
        column = self._columns.get(name)
        if column is None:
            raise self._unknown(name)
        value = self._column_value(column, segments)
        shown = "".join(map(shown_segment, segments))
        self._note({name + shown: Field(name + shown, as_output(value))})
        return value

    def note_position(self) -> None:
        """Note that the position of the message is read, which tells it from all others."""
        self.column("id" if "id" in self._columns else "timestamp", ())

    def _aliased(self, name: str, segments: Sequence[Segment]) -> Value | None:
        found: Tree | Value | None = self._aliases.get(name)
        for position, segment in enumerate(segments):
            if isinstance(found, dict):
                found = found.get(segment) if isinstance(segment, str) else None
            elif found is not None:
                return _inside(found, segments[position:])
        if isinstance(found, dict):
            if name in self._columns:
                return None
            return json(f"to_variant_object({structure(found)})", name=name)
        return found

    def _column_value(self, column: RuleColumn, segments: Sequence[Segment]) -> Value:
        if column.name == "payload" and self._payload is not None:
            return _inside(self._payload, segments)
        if not segments:
            if column.name == "user_properties":
                return json(_all_user_properties(), name=column.name)
            return Value(_KINDS[column.kind], column.expression, name=column.name)
        first, rest = segments[0], segments[1:]
        if column.name == "payload":
            return _inside(json("payload_json", name="payload"), segments)
        if column.name == "user_properties" and isinstance(first, str):
            return _inside(_user_property(first), rest)
        if column.name == "pub_props":
            if first in ("User-Property", "user_property") and rest and isinstance(rest[0], str):
                return _inside(_user_property(rest[0]), rest[1:])
            known = _PROPERTY_NAMES.get(str(first), first)
            return _inside(json("properties", name="pub_props"), (known, *rest))
        return _inside(Value(_KINDS[column.kind], column.expression, name=column.name), segments)

    def _note(self, reads: dict[str, Field]) -> None:
        self._reading.update(reads)
        self.reads.update(reads)

    def _unknown(self, name: str) -> UnknownName:
        if name in self._hidden:
            return UnknownName(f"{name[:100]} is not known here", self._hidden[name])
        if name == self._source:
            return UnknownName(f"{name[:100]} is a source", f"a column of it is {name[:100]}.topic")
        known = [*self._columns, *self._aliases, *self._item]
        if "payload" in self._columns:
            fallback = f"a field of the payload is payload.{name}; text is in single quotes"
        else:
            fallback = f"there are: {', '.join(self._columns)}"
        same = [other for other in known if other.lower() == name.lower()]
        hint = f"did you mean {same[0]}?" if same else did_you_mean(name, known, 0.8)
        return UnknownName(f"unknown column {name[:100]}", hint or fallback)


def _inside(value: Value, segments: Sequence[Segment]) -> Value:
    for segment in segments:
        value = field_of(value, segment)
    return value


def _user_property(name: str) -> Value:
    pairs = f"try_variant_get(properties, '$.user_property', '{_PAIRS}')"
    last = f"try_element_at(filter({pairs}, p -> get(p, 0) = {quoted(name)}), -1)"
    return Value(ValueKind.TEXT, f"get({last}, 1)", name=f"user_properties.{name}")


def _all_user_properties() -> str:
    pairs = f"try_variant_get(properties, '$.user_property', '{_PAIRS}')"
    keys = f"array_distinct(transform({pairs}, p -> get(p, 0)))"
    last = f"get(try_element_at(filter({pairs}, p -> get(p, 0) = k), -1), 1)"
    return f"to_variant_object(map_from_arrays({keys}, transform({keys}, k -> {last})))"
