"""Values on their way from a message's row into the relation that a query reads.

A relation has typed columns that can be compared, grouped and kept as state, and a VARIANT is none
of that. So a field travels as the text of its JSON and is parsed again; a result of arithmetic as
two columns, the integer and, where that is none, the double.
"""

from collections.abc import Sequence

from rules.language.plan import TypedColumn
from rules.language.values import (
    Value,
    ValueKind,
    as_condition,
    as_integer,
    as_output,
    as_variant,
    boolean,
    double,
    failure,
    integer,
    json,
    text,
)

_EXPONENT = "'e0'"


class Projection:
    """The columns that a relation gets, each of them once.

    Args:
        prefix: Beginning of their names.
    """

    def __init__(self, prefix: str = "c") -> None:
        self._prefix = prefix
        self._names: dict[tuple[str, str], str] = {}

    def add(self, spark_type: str, expression: str) -> str:
        """Return the name of the column that an expression becomes."""
        number = len(self._names)
        return self._names.setdefault((spark_type, expression), f"{self._prefix}{number}")

    def columns(self) -> tuple[TypedColumn, ...]:
        return tuple(
            TypedColumn(name, spark_type, expression)
            for (spark_type, expression), name in self._names.items()
        )

    def __len__(self) -> int:
        return len(self._names)

    def cut(self, length: int) -> None:
        """Forget all columns but the first."""
        for key in list(self._names)[length:]:
            del self._names[key]


def stored(value: Value, *, keeps_null: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the columns that a value becomes, each its type and expression.

    Args:
        value: Not a constant.
        keeps_null: Whether null in JSON stays apart from a missing field; else both are NULL.
    """
    if value.kind is ValueKind.NUMBER:
        too_large = failure("the number is out of range")
        finite = f"IF(abs({value.sql}) >= double('Infinity'), {too_large}, {value.sql})"
        fraction = f"IF({value.exact} IS NULL, {finite}, NULL)"
        return (("BIGINT", value.exact), ("DOUBLE", fraction))
    if value.kind is ValueKind.INTEGER:
        return (("BIGINT", as_integer(value)),)
    if value.kind is ValueKind.DOUBLE:
        return (("DOUBLE", as_output(value)),)
    if value.kind is ValueKind.BOOLEAN:
        return (("BOOLEAN", as_condition(value)),)
    if value.kind is ValueKind.TEXT:
        return (("STRING", value.sql),)
    if value.kind is ValueKind.BINARY:
        return (("BINARY", value.sql),)
    return (("STRING", _json_text(as_variant(value), keeps_null=keeps_null)),)


def restored(value: Value, names: Sequence[str]) -> Value:
    """Return the value that stands for another where its columns are read."""
    if value.kind is ValueKind.NUMBER:
        exact, fraction = names
        whole = f"coalesce({fraction}, CAST({exact} AS DOUBLE))"
        return Value(ValueKind.NUMBER, whole, exact=exact, name=value.name)
    (name,) = names
    if value.kind is ValueKind.INTEGER:
        return integer(name)
    if value.kind is ValueKind.DOUBLE:
        return double(name)
    if value.kind is ValueKind.BOOLEAN:
        return boolean(name)
    if value.kind is ValueKind.TEXT:
        return text(name)
    if value.kind is ValueKind.BINARY:
        return Value(ValueKind.BINARY, name, name=value.name)
    return json(f"try_parse_json({name})", name=value.name)


def carried(value: Value, into: Projection, relation: str, *, may_lack: bool = False) -> Value:
    """Give a relation the columns of a value; return the value where the relation is read.

    Args:
        value: A column of the row that the relation's columns are made of, no constant.
        into: The relation's columns.
        relation: Its name.
        may_lack: Whether rows may be without a partner in the relation; then all of it is null.
    """
    columns = stored(value, keeps_null=True)
    names = [f"{relation}.{into.add(*column)}" for column in columns]
    if may_lack and value.kind is ValueKind.BOOLEAN:
        return json(f"CAST({names[0]} AS VARIANT)", name=value.name)
    return restored(value, names)


def _json_text(variant: str, *, keeps_null: bool) -> str:
    """Return the JSON of a VARIANT; parsed again it is written the same."""
    written = f"to_json({variant})"
    # A double without an exponent would come back as a decimal, and 25.0 as 25.
    number = f"IF(contains({written}, 'E'), {written}, concat({written}, {_EXPONENT}))"
    shown = f"IF(schema_of_variant({variant}) = 'DOUBLE', {number}, {written})"
    return shown if keeps_null else f"IF(is_variant_null({variant}), NULL, {shown})"
