"""Payloads that are not JSON: decoded by a registered schema, or as Sparkplug B.

Unlike other functions these fail the rule for a message whose bytes do not follow the schema:
it becomes a dead letter, with its bytes, and can be run again when the schema is right.
"""

import re
from collections.abc import Sequence
from typing import Final

from rules.language.functions.function import CallContext, Function, Unusable, literal_text
from rules.language.values import Value, ValueKind, as_bytes, json
from rules.schemas.errors import UnknownSchema
from rules.schemas.model import SPARKPLUG_B

_REFERENCE: Final = re.compile(r"([^:]*)(?::([1-9][0-9]{0,8}))?")


def decoded(
    context: CallContext, reference: str, value: Value, message_type: str | None = None
) -> Value:
    """Return bytes decoded by a schema.

    Args:
        context: Knows the schemas.
        reference: Name of a schema, or name:version.
        value: The bytes.
        message_type: Message of a Protobuf schema; None: the one that the schema names.

    Raises:
        UnknownSchema: There is none.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise UnknownSchema(
            f"{reference[:100]!r} is not a schema", "write 'name' or 'name:version'"
        )
    version = None if match[2] is None else int(match[2])
    layout = context.layout(match[1], version, message_type)
    data = as_bytes(value)
    return json(f"mqlake_decode({data}, '{layout}')", name=value.name or "the value decoded")


def _schema_decode(arguments: Sequence[Value], context: CallContext) -> Value:
    reference = literal_text(arguments, 0, "the name of the schema")
    message_type = None
    if len(arguments) > 2:
        message_type = literal_text(arguments, 2, "the message type")
    try:
        return decoded(context, reference, _data(arguments[1], 1), message_type)
    except UnknownSchema as exc:
        raise Unusable(f"{exc}: {exc.hint}" if exc.hint else str(exc), 0) from exc


def _sparkplug_decode(arguments: Sequence[Value], context: CallContext) -> Value:
    return decoded(context, SPARKPLUG_B, _data(arguments[0], 0))


def _data(value: Value, index: int) -> Value:
    if value.kind not in (ValueKind.BINARY, ValueKind.TEXT, ValueKind.JSON):
        raise Unusable(f"expected bytes, this is {value.kind.value}", index)
    return value


FUNCTIONS: Final = {
    "schema_decode": Function(2, 3, _schema_decode),
    "sparkplug_decode": Function(1, 1, _sparkplug_decode),
}
