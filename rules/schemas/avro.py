"""Avro: a schema (specification 1.12) is checked and becomes a layout.

The layout lists types, the datum's first; a type names its parts by their place in the list, so
that a record may hold itself.
"""

import json
import re
from typing import Any, Final

from rules.schemas.errors import SchemaError

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
MAX_TYPES: Final = 5_000
MAX_DEPTH: Final = 64
MAX_FIXED: Final = 16_777_216
MAX_SCALE: Final = 38
"""Largest scale of a decimal; its digits are written out."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def compile_avro(source: str) -> dict[str, Any]:
    """Return the layout of a schema.

    Raises:
        SchemaError: It is not JSON, or not a schema.
    """
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as exc:
        raise SchemaError(f"the schema is not JSON: {exc}") from exc
    types = _Types()
    types.add(schema, "", "the schema", 0)
    return {"format": "avro", "types": types.listed}


class _Types:
    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self._named: dict[str, int] = {}
        self._primitives: dict[str, int] = {}

    def add(self, schema: Any, namespace: str, where: str, depth: int) -> int:
        """List a type and those in it; return its place."""
        if depth > MAX_DEPTH:
            raise SchemaError(f"{where} is nested too deeply")
        if isinstance(schema, str):
            return self._by_name(schema, namespace, where)
        if isinstance(schema, list):
            return self._union(schema, namespace, where, depth)
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaError(f"{where} is {_shown(schema)}, expected a type")
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.add(kind, namespace, where, depth + 1)
        match kind:
            case "record" | "error":
                return self._record(schema, namespace, where, depth)
            case "enum":
                return self._enum(schema, namespace, where)
            case "fixed":
                return self._fixed(schema, namespace, where)
            case "array" | "map":
                return self._collection(schema, namespace, where, depth)
            case "bytes" if schema.get("logicalType") == "decimal":
                scale = schema.get("scale", 0)
                return self._list({"type": "bytes", "scale": _scale(scale, where)})
        if not isinstance(kind, str):
            raise SchemaError(f"{where} has the type {_shown(kind)}, expected a name")
        return self._by_name(kind, namespace, where)

    def _list(self, described: dict[str, Any]) -> int:
        if len(self.listed) >= MAX_TYPES:
            raise SchemaError(f"there are more than {MAX_TYPES} types")
        self.listed.append(described)
        return len(self.listed) - 1

    def _by_name(self, name: str, namespace: str, where: str) -> int:
        if name in PRIMITIVES:
            if name not in self._primitives:
                self._primitives[name] = self._list({"type": name})
            return self._primitives[name]
        for full in (name if "." in name or not namespace else f"{namespace}.{name}", name):
            if full in self._named:
                return self._named[full]
        raise SchemaError(f"{where} has the type {name!r}, which is not defined before it")

    def _define(self, schema: dict[str, Any], namespace: str, where: str, place: int) -> str:
        """Give a type its name; return the namespace of the types in it."""
        name = schema.get("name")
        if not isinstance(name, str):
            raise SchemaError(f"{where} is a {schema['type']} without a name")
        given = schema.get("namespace", namespace)
        if not isinstance(given, str):
            raise SchemaError(f"the namespace of {name!r} is not text")
        full = name if "." in name or not given else f"{given}.{name}"
        if not all(_NAME.fullmatch(part) for part in full.split(".")):
            raise SchemaError(f"{full!r} is not a name: letters, digits and _ only")
        if full in self._named or full in PRIMITIVES:
            raise SchemaError(f"{full!r} is defined twice")
        self._named[full] = place
        return full.rpartition(".")[0]

    def _record(self, schema: dict[str, Any], namespace: str, where: str, depth: int) -> int:
        names: list[str] = []
        parts: list[int] = []
        place = self._list({"type": "record", "names": names, "parts": parts})
        inner = self._define(schema, namespace, where, place)
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise SchemaError(f"record {schema['name']!r} has no list of fields")
        for field in fields:
            name = field.get("name") if isinstance(field, dict) else None
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise SchemaError(f"record {schema['name']!r} has a field {_shown(field)}")
            if name in names:
                raise SchemaError(f"record {schema['name']!r} has the field {name!r} twice")
            what = f"field {name!r} of {schema['name']!r}"
            if "type" not in field:
                raise SchemaError(f"{what} has no type")
            names.append(name)
            parts.append(self.add(field["type"], inner, what, depth + 1))
        return place

    def _enum(self, schema: dict[str, Any], namespace: str, where: str) -> int:
        symbols = schema.get("symbols")
        if (
            not isinstance(symbols, list)
            or not symbols
            or not all(isinstance(one, str) and _NAME.fullmatch(one) for one in symbols)
            or len(set(symbols)) < len(symbols)
        ):
            raise SchemaError(f"{where}: an enum needs a list of different symbols")
        place = self._list({"type": "enum", "names": symbols})
        self._define(schema, namespace, where, place)
        return place

    def _fixed(self, schema: dict[str, Any], namespace: str, where: str) -> int:
        size = _number(schema.get("size"), f"size of {where}")
        if size > MAX_FIXED:
            raise SchemaError(f"size of {where} is {size}, at most {MAX_FIXED}")
        described: dict[str, Any] = {"type": "fixed", "size": size}
        if schema.get("logicalType") == "decimal":
            described["scale"] = _scale(schema.get("scale", 0), where)
        place = self._list(described)
        self._define(schema, namespace, where, place)
        return place

    def _collection(self, schema: dict[str, Any], namespace: str, where: str, depth: int) -> int:
        kind = schema["type"]
        inner = "items" if kind == "array" else "values"
        if inner not in schema:
            raise SchemaError(f"{where}: {kind} without {inner}")
        parts: list[int] = []
        place = self._list({"type": kind, "parts": parts})
        parts.append(self.add(schema[inner], namespace, f"{inner} of {where}", depth + 1))
        return place

    def _union(self, schema: list[Any], namespace: str, where: str, depth: int) -> int:
        if not schema:
            raise SchemaError(f"{where} is a union of nothing")
        parts: list[int] = []
        place = self._list({"type": "union", "parts": parts})
        kinds = []
        for branch in schema:
            if isinstance(branch, list):
                raise SchemaError(f"{where}: a union directly holds a union")
            part = self.add(branch, namespace, where, depth + 1)
            parts.append(part)
            kind = self.listed[part]["type"]
            kinds.append(part if kind in ("record", "enum", "fixed") else kind)
        if len(set(kinds)) < len(kinds):
            raise SchemaError(f"{where}: a union holds a type twice")
        return place


def _number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SchemaError(f"{what} is {_shown(value)}, expected a number from 0")
    return value


def _scale(value: Any, where: str) -> int:
    scale = _number(value, f"scale of {where}")
    if scale > MAX_SCALE:
        raise SchemaError(f"scale of {where} is {scale}, at most {MAX_SCALE}")
    return scale


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
