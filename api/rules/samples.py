"""Made-up messages and events, from a user's values by the names of EMQX's rule test."""

import json
import re
import secrets
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final

from api.rules.trial import Sample
from mqlake.errors import InvalidTopic, MqlakeError
from mqlake.records.rules import EVENTS_PREFIX
from mqlake.topics.names import SEPARATOR, validate_topic_name
from rules import columns
from rules.language.compiled import CompiledRule

MESSAGE_EVENT: Final = "message_publish"

_KEY: Final = re.compile(r"'\$\.(\w+)'")
_ALIASES: Final = {
    "node": "gateway",
    "proto_ver": "protocol_level",
    "client_id": "clientid",
    "publish_received_at": "timestamp",
}
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "STRING": (str,),
    "INT": (int,),
    "BIGINT": (int,),
    "BOOLEAN": (bool,),
}
_NOT_GIVEN: Final = frozenset({"payload", "payload_json", "properties", "event", "event_fields"})
_SPECIAL: Final = frozenset(
    {"event_type", "payload", "payload_base64", "properties", "pub_props", "user_properties"}
)


class InvalidContext(MqlakeError):  # noqa: N818 - it names the thing refused
    """The user's values make no valid message."""


def make_sample(rule: CompiledRule, context: Mapping[str, Any], tenant: str, now_ms: int) -> Sample:
    """Return the row that a message or an event would be.

    Raises:
        InvalidContext: A name is unknown or a value of another type.
    """
    event = context.get("event_type", MESSAGE_EVENT if not rule.is_events else None)
    if event is None:
        event = rule.filters[0].removeprefix(EVENTS_PREFIX)
    if event != MESSAGE_EVENT:
        return _event(str(event), context, tenant, now_ms)
    return _message(rule, context, tenant, now_ms)


def _message(rule: CompiledRule, context: Mapping[str, Any], tenant: str, now_ms: int) -> Sample:
    types = {one.name: one.type for one in columns.ROW if one.name not in _NOT_GIVEN}
    row: dict[str, Any] = {
        "id": secrets.token_hex(16),
        "tenant": tenant,
        "topic": _any_topic(rule),
        "clientid": "test",
        "qos": 0,
        "retain": False,
        "dup": False,
        "protocol_level": 4,
        "timestamp": now_ms,
        "gateway": "gateway-1",
        "site": "local",
        "log_partition": 0,
        "log_offset": 0,
    }
    for given, value in context.items():
        name = _ALIASES.get(given, given)
        if given in _SPECIAL:
            continue
        if name not in types:
            known = ", ".join(sorted({*types, *_SPECIAL}))
            raise InvalidContext(f"a message has no {given!r}, expected one of {known}")
        row[name] = _checked(given, value, types[name])
    row["publish_received_at"] = row["timestamp"]
    try:
        validate_topic_name(row["topic"])
    except InvalidTopic as exc:
        raise InvalidContext(str(exc)) from exc
    payload = _payload(context)
    row["payload"] = payload
    row["payload_json"] = payload.decode(errors="replace")
    row["properties"] = _properties(context)
    return Sample(row["topic"], row)


def _event(event: str, context: Mapping[str, Any], tenant: str, now_ms: int) -> Sample:
    fields = columns.EVENTS.get(event)
    if fields is None:
        raise InvalidContext(
            f"there is no event {event!r}, expected one of {', '.join(columns.EVENTS)}"
        )
    value: dict[str, Any] = {"tenant": tenant, "ts": now_ms, "client_id": "test"}
    keys = {one.name: match[1] for one in fields if (match := _KEY.search(one.expression))}
    for given, said in context.items():
        if given == "event_type":
            continue
        if given not in keys:
            raise InvalidContext(
                f"the event {event} has no {given!r}, expected one of {', '.join(keys)}"
            )
        value[keys[given]] = said
    topic = EVENTS_PREFIX + event
    row = {
        "tenant": tenant,
        "topic": topic,
        "clientid": value["client_id"],
        "timestamp": value["ts"],
        "publish_received_at": value["ts"],
        "event": event.replace("_", "."),
        "event_fields": json.dumps(value),
        "log_partition": 0,
        "log_offset": 0,
    }
    return Sample(topic, row)


def _any_topic(rule: CompiledRule) -> str:
    """Return a topic name that a filter matches."""
    if rule.is_events:
        return "test"
    levels = rule.filters[0].split(SEPARATOR)
    return SEPARATOR.join("test" if level in ("+", "#") else level for level in levels)


def _payload(context: Mapping[str, Any]) -> bytes:
    if "payload_base64" in context:
        try:
            return b64decode(str(context["payload_base64"]), validate=True)
        except ValueError as exc:
            raise InvalidContext(f"payload_base64 is not base64: {exc}") from exc
    payload = context.get("payload", "")
    if isinstance(payload, str):
        return payload.encode()
    return json.dumps(payload, ensure_ascii=False).encode()


def _properties(context: Mapping[str, Any]) -> str | None:
    """Return message properties as the log has them, see `docs/records.md`."""
    properties = context.get("properties", context.get("pub_props"))
    pairs = context.get("user_properties")
    if properties is None and pairs is None:
        return None
    if not isinstance(properties, dict | None) or not isinstance(pairs, dict | None):
        raise InvalidContext("properties and user_properties must be JSON objects")
    found = dict(properties or {})
    if pairs is not None:
        found["user_property"] = [[name, str(value)] for name, value in pairs.items()]
    return json.dumps(found, ensure_ascii=False)


def _checked(name: str, value: Any, type_: str) -> Any:
    is_flag = isinstance(value, bool) and type_ != "BOOLEAN"
    if value is not None and (not isinstance(value, _TYPES[type_]) or is_flag):
        raise InvalidContext(f"{name} is {json.dumps(value)}, expected {type_.lower()} or null")
    return value
