"""`republish`: publish an MQTT message, with the arguments of EMQX's action of this name.

The message goes into `mqlake.inbound` as a gateway's would. There are three outcomes: it is in the
log, it is certainly not (an invalid topic name), or this is unknown; then the process ends, and the
next run finds in the log the messages that this one has published.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from mqlake.errors import InvalidTopic
from mqlake.records.messages import (
    HEADER_CHAIN,
    HEADER_CLIENT_ID,
    HEADER_ID,
    HEADER_ORIGIN,
    HEADER_OUTPUT,
    HEADER_PROPERTIES,
    HEADER_TRACEPARENT,
    INBOUND,
    encode_properties,
    message_key,
    mqtt_header,
)
from mqlake.records.outputs import encode_chain
from mqlake.records.versions import HEADER_MQTT, Headers
from mqlake.topics.names import is_system, validate_levels, validate_topic_name
from rules.actions.contract import (
    NO_PROBLEMS,
    ActionError,
    ActionFunction,
    ActionServices,
    Arguments,
    Failure,
    NewRecord,
    Problems,
    Retry,
    Work,
    refusal,
)
from rules.actions.fields import ArgumentError, TemplateText, check_text
from rules.templates import MissingField, Template, to_text

MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
PROTOCOL_LEVEL: Final = 5
"""Messages of a rule may carry properties, so it is taken for a 5.0 publisher."""

PROPERTIES: Final = {
    "Payload-Format-Indicator": "payload_format_indicator",
    "Message-Expiry-Interval": "message_expiry_interval",
    "Content-Type": "content_type",
    "Response-Topic": "response_topic",
    "Correlation-Data": "correlation_data",
}
"""MQTT 5.0 PUBLISH properties that can be set, by EMQX's names: the message's names for them."""

_NUMBERS: Final = {"payload_format_indicator": 1, "message_expiry_interval": 4_294_967_295}
_MQTT_HEADERS: Final = {
    (qos, retain): (HEADER_MQTT, mqtt_header(PROTOCOL_LEVEL, qos, retain=retain, dup=False))
    for qos in (0, 1, 2)
    for retain in (False, True)
}
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _property_name(name: str) -> str:
    if name not in PROPERTIES:
        raise ArgumentError(
            f"there is no property {name!r}", hint="there are " + ", ".join(PROPERTIES)
        )
    return name


class RepublishArgs(Arguments):
    """Arguments of `republish`."""

    topic: TemplateText = Field(min_length=1, description="topic name")
    qos: Literal[0, 1, 2] | TemplateText = Field(default=0, description="0, 1, 2 or a template")
    retain: bool | TemplateText = Field(default=False, description="true, false or a template")
    payload: TemplateText = Field(default="${.}", description="the row as JSON without it")
    mqtt_properties: dict[Annotated[str, AfterValidator(_property_name)], TemplateText] = Field(
        default_factory=dict, description="MQTT 5.0 properties: " + ", ".join(PROPERTIES)
    )
    user_properties: str | dict[str, TemplateText] = Field(
        default="",
        description="user properties: an object, or a template that gives a field with one, as "
        "EMQX's ${user_properties}",
    )
    direct_dispatch: Literal[False] = Field(default=False, description="as EMQX has it; only false")

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str) -> str:
        check_text(topic, _check_topic_name)
        return topic

    @field_validator("qos", "retain", mode="after")
    @classmethod
    def _check_choice(cls, value: Any) -> Any:
        if isinstance(value, str) and not Template.parse(value).placeholders:
            raise ArgumentError(
                f"{value!r} is no template", hint="write it without quotes, or as ${…}"
            )
        return value

    @model_validator(mode="after")
    def _check_user_properties(self) -> "RepublishArgs":
        properties = self.user_properties
        if isinstance(properties, str) and properties:
            template = Template.parse(properties)
            if len(template.parts) != 1 or not template.placeholders:
                raise ArgumentError("user_properties is no object and no single ${…}")
        return self


def _check_topic_name(topic_name: str) -> None:
    try:
        validate_topic_name(topic_name)
    except InvalidTopic as exc:
        raise ArgumentError(str(exc)) from exc
    if is_system(topic_name):
        raise ArgumentError("topic name lies below $SYS, which is the gateways' own")


class Republish:
    """Appends to `mqlake.inbound`."""

    max_batch = 500
    concurrency = 4
    may_fall_behind = False
    runs_recovered = True
    retry = Retry(attempts=1)

    def __init__(self, args: RepublishArgs, services: ActionServices) -> None:
        self._services = services
        self._log = services.log
        self._topic = Template.parse(args.topic)
        self._payload = Template.parse(args.payload)
        self._qos = Template.parse(args.qos) if isinstance(args.qos, str) else args.qos
        self._retain = Template.parse(args.retain) if isinstance(args.retain, str) else args.retain
        self._properties = {
            PROPERTIES[name]: Template.parse(text) for name, text in args.mqtt_properties.items()
        }
        self._user_properties = (
            Template.parse(args.user_properties)
            if isinstance(args.user_properties, str)
            else {name: Template.parse(text) for name, text in args.user_properties.items()}
        )
        self._origin = (HEADER_ORIGIN, services.origin)
        self._has_properties = bool(self._properties) or bool(
            self._user_properties != Template(()) and self._user_properties
        )

    async def run(self, batch: Sequence[Work]) -> Problems:
        records: list[NewRecord] = []
        numbers: list[int] = []
        problems: dict[int, ActionError] = {}
        for number, work in enumerate(batch):
            if work.recovered and self._services.is_published(work.action_id):
                continue
            try:
                records.append(self._record(work))
                numbers.append(number)
            except ActionError as exc:
                problems[number] = exc
            except MissingField as exc:
                problems[number] = ActionError(str(exc))
        for index, error in (await self._log.append(records)).items():
            if not error.definite:
                self._services.stop(f"it is not known whether a message was published: {error}")
                raise ActionError(str(error), Failure.UNAVAILABLE)
            problems[numbers[index]] = refusal(error)
        return problems or NO_PROBLEMS

    async def close(self) -> None:
        pass

    def _record(self, work: Work) -> NewRecord:
        output = work.output
        topic_name = self._topic.constant or self._topic_name(work)
        try:
            validate_levels(topic_name, self._services.max_topic_levels)
        except InvalidTopic as exc:
            raise ActionError(f"{exc}: {topic_name[:200]!r}") from exc
        if not self._services.may_publish(topic_name):
            raise ActionError(f"the maker of the rule may not publish to {topic_name[:200]!r}")
        payload = output.row if self._payload.is_row else self._payload.render(work).encode()
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ActionError(f"payload is larger than {MAX_PAYLOAD_BYTES} bytes")
        qos = self._qos if isinstance(self._qos, int) else self._render_qos(self._qos, work)
        retain = self._retain
        if not isinstance(retain, bool):
            retain = self._render_retain(retain, work)
        chain = encode_chain((*output.chain, output.rule))
        headers: Headers = [
            _MQTT_HEADERS[qos, retain],
            (HEADER_ID, self._services.next_message_id()),
            (HEADER_CLIENT_ID, f"rule:{output.rule}".encode()),
            self._origin,
            (HEADER_CHAIN, chain),
            (HEADER_OUTPUT, work.action_id),
        ]
        if self._has_properties and (properties := self._render_properties(work)):
            headers.append((HEADER_PROPERTIES, encode_properties(properties)))
        if output.traceparent:
            headers.append((HEADER_TRACEPARENT, output.traceparent))
        return NewRecord(INBOUND, message_key(output.tenant, topic_name), payload, headers)

    def _topic_name(self, work: Work) -> str:
        topic_name = self._topic.render(work, needs_all=True)
        if _SURROGATE.search(topic_name):
            raise ActionError("topic name is not UTF-8")
        try:
            _check_topic_name(topic_name)
        except ArgumentError as exc:
            raise ActionError(f"{exc.problem}: {topic_name[:200]!r}") from exc
        return topic_name

    def _render_qos(self, template: Template, work: Work) -> int:
        text = template.render(work, needs_all=True)
        if text not in ("0", "1", "2"):
            raise ActionError(f"qos is {text[:40]!r}, expected 0, 1 or 2")
        return int(text)

    def _render_retain(self, template: Template, work: Work) -> bool:
        text = template.render(work, needs_all=True)
        if text not in _FLAGS:
            raise ActionError(f"retain is {text[:40]!r}, expected true or false")
        return _FLAGS[text]

    def _render_properties(self, work: Work) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for name, template in self._properties.items():
            # As in EMQX: a property whose field is missing is left out.
            try:
                text = template.render(work, needs_all=True)
            except MissingField:
                continue
            properties[name] = _property(name, text)
        pairs = self._user_pairs(work)
        if pairs:
            properties["user_property"] = pairs
        return properties

    def _user_pairs(self, work: Work) -> list[tuple[str, str]]:
        templates = self._user_properties
        if isinstance(templates, dict):
            return [(name, template.render(work)) for name, template in templates.items()]
        if not templates.placeholders:
            return []
        value = templates.placeholders[0].value(work)
        if value is None:
            return []
        if not isinstance(value, dict):
            raise ActionError("user properties are no object")
        pairs = []
        for name, text in value.items():
            # A name that came several times has a list of values.
            pairs += [(name, to_text(one)) for one in (text if isinstance(text, list) else [text])]
        return pairs


def _property(name: str, text: str) -> Any:
    if name == "correlation_data":
        return text.encode()
    if name == "response_topic":
        try:
            validate_topic_name(text)
        except InvalidTopic as exc:
            raise ActionError(f"response topic: {exc}") from exc
    if name not in _NUMBERS:
        return text
    try:
        number = json.loads(text)
    except ValueError:
        number = None
    if type(number) is not int or not 0 <= number <= _NUMBERS[name]:
        raise ActionError(f"{name} is {text[:40]!r}, expected 0 to {_NUMBERS[name]}")
    return number


FUNCTION: Final = ActionFunction("republish", RepublishArgs, Republish, "publishes an MQTT message")
