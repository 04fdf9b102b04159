"""The examples of `docs/schemas.md`, evaluated as the engine does it."""

import json
import re
from typing import Any

import pytest

from mqlake.records.outputs import DeadLetter, Output
from mqlake.records.rules import OffsetRange, Span
from rules.language.compiler import compile_rule
from rules.schemas.model import SchemaBody
from tests.docs.test_schemas import EXAMPLES, TEXT, registered
from tests.streaming.decoding import schemas
from tests.streaming.rule_engine import Engine

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one[0].partition("\n")[0])
def test_an_example_gives_what_it_says(
    routing_jvm: Any, routing_gateway: Any, example: tuple[str, str, str, str]
) -> None:
    (proto,) = re.findall(r"```protobuf\n(.*?)```", TEXT, re.DOTALL)
    known = schemas(boiler=registered().body(), pump=SchemaBody(type="protobuf", source=proto))
    sql, said, kind, expected = example
    message = json.loads(said)
    payload = message.get("payload", "").encode() or bytes.fromhex(message["payload_hex"])
    rule = compile_rule(sql, schemas=known)
    engine = Engine(routing_jvm, routing_gateway)
    sources = {"mqlake.inbound": OffsetRange((0,))}
    engine.activate(Span(1, rule.filters, rule.expression, (), None, sources))
    made = engine.publish(message["topic"], payload)
    if kind == "text":
        assert expected == "failed\n"
        assert [type(one) for one in made] == [DeadLetter]
    else:
        rows = [json.loads(one.row) for one in made if isinstance(one, Output)]
        assert rows == [json.loads(line) for line in expected.splitlines()]
