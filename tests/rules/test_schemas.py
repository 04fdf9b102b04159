"""Schemas that are refused, and why."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rules.schemas import protobuf
from rules.schemas.avro import compile_avro
from rules.schemas.errors import SchemaError


def record(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (7, "expected a type"),
        ({"name": "R"}, "expected a type"),
        ({"type": 7}, "expected a name"),
        ("text", "'text', which is not defined before it"),
        (record({"name": "a", "type": "S"}), "field 'a' of 'R' has the type 'S'"),
        (record({"name": "a"}), "field 'a' of 'R' has no type"),
        (record({"name": "1a", "type": "int"}), "has a field"),
        (record({"name": "a", "type": "int"}, {"name": "a", "type": "int"}), "'a' twice"),
        ({"type": "record", "name": "R"}, "no list of fields"),
        ({"type": "record", "fields": []}, "without a name"),
        (record(name="a b"), "is not a name"),
        (record(namespace=7), "is not text"),
        (record(name="int"), "'int' is defined twice"),
        (record({"name": "a", "type": record()}), "'R' is defined twice"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "different symbols"),
        ({"type": "fixed", "name": "F", "size": -1}, "expected a number from 0"),
        ({"type": "fixed", "name": "F", "size": 2**40}, "at most"),
        ({"type": "array"}, "array without items"),
        ({"type": "map"}, "map without values"),
        ([], "union of nothing"),
        (["int", ["null"]], "directly holds a union"),
        (["int", "null", "int"], "holds a type twice"),
        ({"type": "bytes", "logicalType": "decimal", "scale": "2"}, "scale of"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(SchemaError) as caught:
        compile_avro(json.dumps(schema))
    assert said in str(caught.value)


def test_a_schema_is_bounded() -> None:
    nested: Any = "int"
    for _ in range(100):
        nested = {"type": "array", "items": nested}
    with pytest.raises(SchemaError, match="nested too deeply"):
        compile_avro(json.dumps(nested))
    with pytest.raises(SchemaError, match="not JSON"):
        compile_avro("[" * 100_000)


def test_names_are_found_in_their_namespace() -> None:
    inner = {"type": "fixed", "name": "F", "size": 1}
    schema = record(
        {"name": "a", "type": inner},
        {"name": "b", "type": "F"},
        {"name": "c", "type": ["null", "x.R"]},
        namespace="x",
    )
    first, *_ = compile_avro(json.dumps(schema))["types"]
    assert first["parts"][0] == first["parts"][1]


def test_few_runs_of_protoc_go_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "TIMEOUT_SECONDS", 0.01)
    ran: list[str] = []
    running, may_end = threading.Semaphore(0), threading.Event()

    def run(source: str) -> bytes:
        ran.append(source)
        running.release()
        assert may_end.wait(60)
        return b"done"

    monkeypatch.setattr(protobuf, "_run_protoc", run)
    with ThreadPoolExecutor(protobuf.AT_ONCE) as pool:
        before = [pool.submit(protobuf.run_protoc, "before") for _ in range(protobuf.AT_ONCE)]
        try:
            assert all(running.acquire(timeout=60) for _ in before)
            with pytest.raises(SchemaError, match="2 other schemas are being compiled: try again"):
                protobuf.run_protoc("first")
        finally:
            may_end.set()
        assert all(one.result() == b"done" for one in before)
    ran.clear()
    for _ in range(protobuf.AT_ONCE + 1):
        assert protobuf.run_protoc("second") == b"done"
    assert ran == ["second"] * 3
