"""What tests of decoding share: schemas at hand, and the decoder in a plain JVM."""

import json
from typing import Any

from rules.schemas.model import Schema, SchemaBody
from rules.schemas.registry import Schemas, compile_schema


def schemas(**bodies: SchemaBody) -> Schemas:
    """Return a tenant's schemas, each in version 1."""
    return Schemas({name: {1: schema(name, body)} for name, body in bodies.items()})


def schema(name: str, body: SchemaBody, version: int = 1) -> Schema:
    layout = compile_schema(body)
    return Schema(**dict(body), name=name, version=version, created_at=0, layout=layout)


def decode(jvm: Any, known: Schemas, name: str, payload: bytes, message: str | None = None) -> Any:
    """Return what a payload decodes to; raises what Java raises."""
    decoder = jvm.mqlake.decoding.PayloadDecoder
    layout = known.find(name, None, message)
    assert decoder.remember(layout.text) == layout.hash
    return json.loads(decoder.named(layout.hash).decode(payload).toString())


def message_class(source: str, name: str) -> Any:
    """Return the Python class of a message, as protoc's own library makes it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    from rules.schemas.protobuf import run_protoc

    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString(run_protoc(source))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
