"""The decoders of payloads, in a plain JVM: what bytes become, and which bytes are refused."""

import json
import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError

from rules.schemas.model import SPARKPLUG_B, SchemaBody
from rules.schemas.registry import NO_SCHEMAS, Schemas
from tests.streaming.decoding import decode, message_class, schemas

pytestmark = pytest.mark.spark

PROTO3 = """
syntax = "proto3";
package plant;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";

enum State { OFF = 0; ON = 1; }
message Part { string name = 1; Part inner = 2; }
message Reading {
  double d = 1; float f = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5; uint64 u64 = 6;
  sint32 s32 = 7; sint64 s64 = 8; fixed32 f32 = 9; fixed64 f64 = 10; sfixed32 sf32 = 11;
  sfixed64 sf64 = 12; bool b = 13; string s = 14; bytes raw = 15; State state = 16;
  repeated int32 numbers = 17; repeated string names = 18; map<string, Part> parts = 19;
  map<int64, double> by_number = 20; optional int32 maybe = 21; Part part = 22;
  oneof either { string left = 23; int32 right = 2000; }
  google.protobuf.Timestamp at = 25; google.protobuf.Duration lasted = 26;
  google.protobuf.Struct free = 27; google.protobuf.DoubleValue boxed = 28;
}
"""
PROTO2 = """
syntax = "proto2";
message Old {
  required int32 id = 1;
  optional string name = 2;
  repeated group Line = 3 { required string text = 4; }
}
"""
READING = message_class(PROTO3, "plant.Reading")
OLD = message_class(PROTO2, "Old")
SPARKPLUG = message_class(
    Path(__file__).with_name("sparkplug_b.proto").read_text(encoding="utf-8"), "sparkplug.Payload"
)
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "namespace": "plant",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "celsius", "type": ["null", "double"]},
        {"name": "f", "type": "float"},
        {"name": "on", "type": "boolean"},
        {"name": "n", "type": "int"},
        {"name": "unit", "type": {"type": "enum", "name": "Unit", "symbols": ["C", "F"]}},
        {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "past", "type": {"type": "array", "items": "int"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "scale": 2}},
        {"name": "next", "type": ["null", "Reading"]},
    ],
}


@pytest.fixture(scope="module")
def known() -> Schemas:
    return schemas(
        p3=SchemaBody(type="protobuf", source=PROTO3, message_type="Reading"),
        p2=SchemaBody(type="protobuf", source=PROTO2),
        av=SchemaBody(type="avro", source=json.dumps(AVRO)),
        numbers=SchemaBody(type="avro", source='{"type": "array", "items": "null"}'),
    )


def failure(jvm: Any, known: Schemas, name: str, payload: bytes) -> str:
    with pytest.raises(Py4JJavaError) as caught:
        decode(jvm, known, name, payload)
    return str(caught.value.java_exception.getMessage())


# Protobuf


def test_every_type_of_protobuf(routing_jvm: Any, known: Schemas) -> None:
    message = READING(
        d=1.5, f=0.1, i32=-1, i64=-(2**63), u32=2**32 - 1, u64=2**64 - 1, s32=-2, s64=-3,
        f32=2**32 - 1, f64=2**63, sf32=-4, sf64=-5, b=True, s="ä", raw=b"\x00\xff", state=1,
        numbers=[1, -2], names=["a", ""], by_number={-7: 0.5}, maybe=0, right=9,
    )  # fmt: skip
    message.parts["x"].inner.name = "y"
    message.at.FromJsonString("2026-01-31T12:00:00.500Z")
    message.lasted.FromJsonString("-1.5s")
    message.free.update({"a": [1, None, {"b": True}]})
    message.boxed.value = 2.5
    assert decode(routing_jvm, known, "p3", message.SerializeToString()) == {
        "d": 1.5, "f": 0.1, "i32": -1, "i64": -(2**63), "u32": 2**32 - 1, "u64": 2**64 - 1,
        "s32": -2, "s64": -3, "f32": 2**32 - 1, "f64": 2**63, "sf32": -4, "sf64": -5, "b": True,
        "s": "ä", "raw": "AP8=", "state": "ON", "numbers": [1, -2], "names": ["a", ""],
        "parts": {"x": {"name": "", "inner": {"name": "y"}}}, "by_number": {"-7": 0.5}, "maybe": 0,
        "right": 9, "at": "2026-01-31T12:00:00.500Z", "lasted": "-1.500s",
        "free": {"a": [1, None, {"b": True}]}, "boxed": 2.5,
    }  # fmt: skip


def test_what_is_absent_is_zero_in_proto3_unless_it_is_optional(
    routing_jvm: Any, known: Schemas
) -> None:
    found = decode(routing_jvm, known, "p3", b"")
    assert found["d"] == 0
    assert found["state"] == "OFF"
    assert found["numbers"] == []
    assert found["parts"] == {}
    assert not {"maybe", "part", "left", "right", "at"} & found.keys()


def test_what_protobuf_has_for_json_is_what_its_own_library_writes(
    routing_jvm: Any, known: Schemas
) -> None:
    message = READING(d=float("inf"), f=1e30, raw=b"abc", state=7)
    message.at.seconds, message.lasted.nanos = 1, 1
    expected = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for name in ("i64", "u64", "s64", "f64", "sf64"):  # the library writes them as text
        expected[name] = int(expected[name])
    assert decode(routing_jvm, known, "p3", message.SerializeToString()) == expected


def test_groups_and_required_fields_of_proto2(routing_jvm: Any, known: Schemas) -> None:
    message = OLD(id=1)
    message.line.add(text="a")
    assert decode(routing_jvm, known, "p2", message.SerializeToString()) == {
        "id": 1,
        "line": [{"text": "a"}],
    }
    assert "field id of Old is missing" in failure(routing_jvm, known, "p2", b"")


def test_unknown_fields_are_skipped_and_unpacked_numbers_taken(
    routing_jvm: Any, known: Schemas
) -> None:
    # Fields 100 to 103 of each wire type, a group with a number in it, then `numbers` one by one.
    extra = b"\xa0\x06\x01" + b"\xa9\x06" + bytes(8) + b"\xb2\x06\x01x" + b"\xbd\x06" + bytes(4)
    extra += b"\xc3\x06\x08\x01\xc4\x06"
    found = decode(routing_jvm, known, "p3", extra + b"\x88\x01\x05\x88\x01\x06")
    assert found["numbers"] == [5, 6]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x09\x00", "ends too early"),
        (b"\x08\x01", "field d is a number, expected 8 bytes"),
        (b"\x72\x05ab", "5 bytes expected, 2 left"),
        (b"\x72\x01\xff", "a text is not UTF-8"),
        (b"\x00\x01", "no field 0"),
        (b"\x18" + b"\xff" * 10, "longer than 10 bytes"),
        (b"\x1c", "a group ends"),
        (b"{}", "a group"),
    ],
)
def test_what_is_no_protobuf_is_refused(
    routing_jvm: Any, known: Schemas, payload: bytes, reason: str
) -> None:
    said = failure(routing_jvm, known, "p3", payload)
    assert "does not decode by schema p3:1 plant.Reading" in said
    assert reason in said


def test_a_message_in_a_message_ends_somewhere(routing_jvm: Any, known: Schemas) -> None:
    part = b""
    for _ in range(80):
        part = b"\x12" + varint(len(part)) + part
    assert "nested too deeply" in failure(
        routing_jvm, known, "p3", b"\xb2\x01" + varint(len(part)) + part
    )


def test_the_message_type_may_be_another(routing_jvm: Any, known: Schemas) -> None:
    assert decode(routing_jvm, known, "p3", b"\x0a\x01a", "plant.Part") == {"name": "a"}


# Avro


def varint(value: int) -> bytes:
    made = b""
    while value > 0x7F:
        made += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return made + bytes((value,))


def zigzag(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63))


def with_length(data: bytes) -> bytes:
    return zigzag(len(data)) + data


def reading(*, following: bytes = zigzag(0)) -> bytes:
    return b"".join(
        (
            zigzag(1_700_000_000_000),
            zigzag(1) + struct.pack("<d", 21.5),
            struct.pack("<f", 0.1),
            b"\x01",
            zigzag(-5),
            zigzag(1),
            b"\x01\x02",
            with_length(b"\xff"),
            # A block with its size before, one without.
            zigzag(-1) + zigzag(5) + with_length(b"k") + with_length("ä".encode()),
            zigzag(0),
            zigzag(2) + zigzag(1) + zigzag(2) + zigzag(1) + zigzag(3) + zigzag(0),
            with_length((-1234).to_bytes(2, "big", signed=True)),
            following,
        )
    )


READ = {
    "at": 1_700_000_000_000, "celsius": 21.5, "f": 0.1, "on": True, "n": -5, "unit": "F",
    "id": "AQI=", "raw": "/w==", "tags": {"k": "ä"}, "past": [1, 2, 3], "price": -12.34,
}  # fmt: skip


def test_every_type_of_avro(routing_jvm: Any, known: Schemas) -> None:
    found = decode(routing_jvm, known, "av", reading(following=zigzag(1) + reading()))
    assert found == {**READ, "next": {**READ, "next": None}}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "ends too early"),
        (reading()[:-1], "ends too early"),
        (reading() + b"x", "1 bytes are left"),
        (reading(following=zigzag(2)), "a union has number 2, there are 2"),
        (b'{"at": 1}', ""),
    ],
)
def test_what_is_no_avro_is_refused(
    routing_jvm: Any, known: Schemas, payload: bytes, reason: str
) -> None:
    said = failure(routing_jvm, known, "av", payload)
    assert "does not decode by schema av:1" in said
    assert reason in said


def test_few_bytes_do_not_become_many_values(routing_jvm: Any, known: Schemas) -> None:
    said = failure(routing_jvm, known, "numbers", zigzag(2**40) + zigzag(0))
    assert "more than 1000000 values" in said


# Sparkplug B


def test_metrics_of_sparkplug_with_their_types(routing_jvm: Any) -> None:
    payload = SPARKPLUG(timestamp=1_700_000_000_000, seq=3, uuid="u", body=b"\x01")
    add = payload.metrics.add
    add(name="Temperature", alias=1, timestamp=5, datatype=9, float_value=21.3)
    add(name="Offset", datatype=3, int_value=2**32 - 7)
    add(name="Small", datatype=1, int_value=0xFF)
    add(name="Big", datatype=4, long_value=2**64 - 9)
    add(name="UBig", datatype=8, long_value=2**64 - 9)
    add(name="On", datatype=11, boolean_value=False)
    add(name="Mode", datatype=12, string_value="auto")
    add(name="Gone", datatype=10, is_null=True)
    add(name="Started", datatype=13, long_value=1_700_000_000_001, is_historical=True)
    add(name="Shorts", datatype=23, bytes_value=struct.pack("<2h", 1, -2))
    add(name="Floats", datatype=30, bytes_value=struct.pack("<2f", 0.5, 0.1))
    flags = struct.pack("<I", 12) + bytes((0x34, 0xD0))
    add(name="Flags", datatype=32, bytes_value=flags)
    add(name="Words", datatype=33, bytes_value=b"ab\0\0c\0")
    add(alias=7, double_value=1.0)
    found = decode(routing_jvm, NO_SCHEMAS, SPARKPLUG_B, payload.SerializeToString())
    assert (found["timestamp"], found["seq"], found["uuid"]) == (1_700_000_000_000, 3, "u")
    assert found["body"] == b64encode(b"\x01").decode()
    assert found["metrics"][0] == {
        "name": "Temperature",
        "alias": 1,
        "timestamp": 5,
        "datatype": "Float",
        "value": 21.3,
    }
    assert found["metrics"][8]["is_historical"] is True
    assert found["metrics"][-1] == {"alias": 7, "value": 1.0}
    bits = [bit == "1" for bit in "001101001101"]
    assert found["values"] == {
        "Temperature": 21.3, "Offset": -7, "Small": -1, "Big": -9, "UBig": 2**64 - 9, "On": False,
        "Mode": "auto", "Gone": None, "Started": 1_700_000_000_001, "Shorts": [1, -2],
        "Floats": [0.5, 0.1], "Flags": bits, "Words": ["ab", "", "c"],
    }  # fmt: skip


def test_data_sets_templates_and_properties_of_sparkplug(routing_jvm: Any) -> None:
    payload = SPARKPLUG()
    table = payload.metrics.add(name="Table", datatype=16).dataset_value
    table.num_of_columns = 2
    table.columns.extend(["a", "b"])
    table.types.extend([3, 12])
    row = table.rows.add()
    row.elements.add(int_value=2**32 - 1)
    row.elements.add(string_value="x")
    metric = payload.metrics.add(name="Motor", datatype=19)
    template = metric.template_value
    template.template_ref, template.version, template.is_definition = "Motor", "1", False
    template.metrics.add(name="rpm", datatype=7, int_value=900)
    template.parameters.add(name="Index", type=3, int_value=4)
    metric.properties.keys.extend(["unit", "range"])
    metric.properties.values.add(type=12, string_value="1/min")
    inner = metric.properties.values.add(type=20).propertyset_value
    inner.keys.append("low")
    inner.values.add(type=3, int_value=2**32 - 1)
    metric.metadata.content_type = "text/plain"
    metric.metadata.size = 5
    found = decode(routing_jvm, NO_SCHEMAS, SPARKPLUG_B, payload.SerializeToString())
    assert found["values"] == {
        "Table": {"columns": ["a", "b"], "types": ["Int32", "String"], "rows": [[-1, "x"]]},
        "Motor": {
            "version": "1",
            "template_ref": "Motor",
            "is_definition": False,
            "metrics": [{"name": "rpm", "datatype": "UInt32", "value": 900}],
            "parameters": {"Index": 4},
        },
    }
    assert found["metrics"][1]["properties"] == {"unit": "1/min", "range": {"low": -1}}
    assert found["metrics"][1]["metadata"] == {"content_type": "text/plain", "size": 5}


def test_a_state_message_is_no_sparkplug_payload(routing_jvm: Any) -> None:
    said = failure(routing_jvm, NO_SCHEMAS, SPARKPLUG_B, b'{"online": true}')
    assert "does not decode by sparkplug_b" in said


# All


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=st.binary(max_size=60), name=st.sampled_from(["p3", "p2", "av", SPARKPLUG_B]))
def test_any_bytes_decode_or_say_that_they_do_not(
    routing_jvm: Any, known: Schemas, payload: bytes, name: str
) -> None:
    try:
        decode(routing_jvm, known, name, payload)
        said = ""
    except Py4JJavaError as exc:
        said = exc.java_exception.getMessage()
    assert not said or "does not decode by" in said
