"""Protobuf: the text of a .proto file is compiled by protoc and becomes a layout.

protoc is a program of many years that reads text of users: it runs in a process of its own, in a
folder that holds nothing else, with limits. Imports find Google's well-known types and no other
file.
"""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rules.schemas.errors import SchemaError, UnknownSchema

FILE: Final = "schema.proto"
TIMEOUT_SECONDS: Final = 20.0
AT_ONCE: Final = 2
"""Runs of protoc, of this process; each may take `_MEMORY_BYTES`."""
_running: Final = threading.BoundedSemaphore(AT_ONCE)
MAX_TYPES: Final = 5_000
_CPU_SECONDS: Final = 10
_MEMORY_BYTES: Final = 1_073_741_824
_FILE_BYTES: Final = 16_777_216

_ENUM: Final = 14
_WITH_TYPE: Final = frozenset({10, 11, _ENUM})
"""Numbers of the types group, message and enum in google/protobuf/descriptor.proto."""
_REQUIRED: Final = 2
_REPEATED: Final = 3

# The limits are set by the process itself: nothing is run between fork and exec.
_PROGRAM: Final = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({_CPU_SECONDS}, {_CPU_SECONDS}))
resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY_BYTES}, {_MEMORY_BYTES}))
resource.setrlimit(resource.RLIMIT_FSIZE, ({_FILE_BYTES}, {_FILE_BYTES}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from importlib.resources import files
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", "-I.", f"-I{{files('grpc_tools') / '_proto'}}", *sys.argv[1:]]))
"""


def compile_protobuf(source: str, message_type: str | None) -> dict[str, Any]:
    """Return the layout of all messages of a .proto file.

    Args:
        source: Its text.
        message_type: The message that a payload is; None: the first of the file.

    Raises:
        SchemaError: It does not compile, or has no such message.
    """
    from google.protobuf import descriptor_pb2

    found = descriptor_pb2.FileDescriptorSet()
    found.ParseFromString(run_protoc(source))
    layout: dict[str, Any] = {"format": "protobuf", "root": "", "messages": {}, "enums": {}}
    own: list[str] = []
    for file in found.file:
        if file.syntax not in ("", "proto2", "proto3"):
            raise SchemaError('editions are not supported: write syntax = "proto3"')
        prefix = f"{file.package}." if file.package else ""
        names = list(_add(file, prefix, layout, is_proto3=file.syntax == "proto3"))
        if file.name == FILE:
            own = names
    if not own:
        raise SchemaError("the file defines no message")
    if len(layout["messages"]) + len(layout["enums"]) > MAX_TYPES:
        raise SchemaError(f"there are more than {MAX_TYPES} types")
    layout["root"] = own[0]
    if message_type is not None:
        try:
            layout["root"] = find_message(layout, message_type)
        except UnknownSchema as exc:
            raise SchemaError(f"{exc}; {exc.hint}") from exc
    return layout


def find_message(layout: dict[str, Any], message_type: str) -> str:
    """Return the full name of a message; without its package if only one has that name.

    Raises:
        UnknownSchema: There is none, or several.
    """
    messages: dict[str, Any] = layout["messages"]
    if message_type in messages:
        return message_type
    found = [name for name in messages if name.endswith(f".{message_type}")]
    if len(found) == 1:
        return found[0]
    known = ", ".join(name for name in messages if not name.startswith("google.protobuf."))
    raise UnknownSchema(
        f"{len(found) or 'no'} message type{'s are' if found else ' is'} called {message_type!r}",
        f"there are: {known[:500]}",
    )


def rooted(layout: dict[str, Any], root: str) -> dict[str, Any]:
    """Return the layout of one message: the types that it reaches, by number, itself the first."""
    numbers = {root: 0}
    types: list[dict[str, Any]] = []
    pending = [root]
    while pending:
        name = pending.pop(0)
        if name in layout["enums"]:
            types.append({"name": name, "symbols": layout["enums"][name]})
            continue
        fields = []
        for number, field, type_, presence, of in layout["messages"][name]:
            if of and of not in numbers:
                numbers[of] = len(numbers)
                pending.append(of)
            fields.append([number, field, type_, presence, numbers[of] if of else -1])
        types.append({"name": name, "fields": fields})
    return {"format": "protobuf", "types": types}


def run_protoc(source: str) -> bytes:
    """Return the serialized FileDescriptorSet of a .proto file and its imports.

    Raises:
        SchemaError: It does not compile, or too many others are being compiled.
    """
    if not _running.acquire(timeout=TIMEOUT_SECONDS):
        raise SchemaError(f"{AT_ONCE} other schemas are being compiled: try again")
    try:
        return _run_protoc(source)
    finally:
        _running.release()


def _run_protoc(source: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="mqlake-protoc-") as folder:
        path = Path(folder)
        (path / FILE).write_text(source, encoding="utf-8")
        command = [sys.executable, "-I", "-c", _PROGRAM]
        command += ["--include_imports", "--descriptor_set_out=out", FILE]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
                env={"LANG": "C.UTF-8"},
            )
        except subprocess.TimeoutExpired as exc:
            raise SchemaError(f"protoc took longer than {TIMEOUT_SECONDS:g} s") from exc
        if done.returncode:
            raise SchemaError(_said(done.stderr.decode(errors="replace")))
        return (path / "out").read_bytes()


def _said(text: str) -> str:
    """Return the errors of protoc: `schema.proto:3:12: …`, the first few lines."""
    lines = [line for line in text.splitlines() if line.startswith(FILE) and "warning" not in line]
    if not lines:
        return "protoc does not compile it: it is too large, or needs too much"
    return "; ".join(line.removeprefix(f"{FILE}:") for line in lines[:5])


def _add(container: Any, prefix: str, layout: dict[str, Any], *, is_proto3: bool) -> Iterator[str]:
    """Add the messages and enums of a file or message; yield the names of the messages."""
    for enum in container.enum_type:
        symbols: dict[str, str] = {}
        for value in enum.value:
            symbols.setdefault(str(value.number), value.name)  # an alias counts only when written
        layout["enums"][prefix + enum.name] = symbols
    nested = getattr(container, "message_type", None)
    for message in container.nested_type if nested is None else nested:
        name = prefix + message.name
        if not message.options.map_entry:
            yield name
        layout["messages"][name] = [
            [
                field.number,
                field.name,
                field.type,
                _presence(field, message, is_proto3=is_proto3),
                field.type_name.removeprefix(".") if field.type in _WITH_TYPE else "",
            ]
            for field in message.field
        ]
        yield from _add(message, f"{name}.", layout, is_proto3=is_proto3)


def _presence(field: Any, message: Any, *, is_proto3: bool) -> str:
    if field.label == _REPEATED:
        entry = field.type_name.rpartition(".")[2]
        is_map = any(one.name == entry and one.options.map_entry for one in message.nested_type)
        return "map" if is_map else "repeated"
    if field.label == _REQUIRED:
        return "required"
    is_scalar = field.type not in _WITH_TYPE or field.type == _ENUM
    if is_proto3 and is_scalar and not field.HasField("oneof_index"):
        return "implicit"
    return "optional"
