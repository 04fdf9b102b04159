"""The schemas of a tenant, as rules find them; and all schemas, as the log has them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mqlake.records.rule_facts import Fact, keep
from rules.schemas.avro import compile_avro
from rules.schemas.errors import UnknownSchema
from rules.schemas.layouts import SPARKPLUG_LAYOUT, Layout, pack
from rules.schemas.model import SPARKPLUG_B, Schema, SchemaBody
from rules.schemas.protobuf import compile_protobuf, find_message, rooted
from rules.sql.errors import did_you_mean


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """That a rule decodes by a schema.

    Attributes:
        version: That is decoded by; 0 when there is no such schema.
        is_newest: The rule names no version: a newer one takes its place.
    """

    name: str
    version: int
    is_newest: bool


class SchemaLookup(Protocol):
    """Lookup of schemas for the compiler of rules."""

    def find(self, name: str, version: int | None, message_type: str | None) -> Layout:
        """Return the layout to decode by.

        Args:
            name: Name of the schema.
            version: None: the newest.
            message_type: Message of a Protobuf schema; None: the one that the schema names.

        Raises:
            UnknownSchema: There is none.
        """

    def newest(self, name: str) -> int:
        """Return the newest version of a schema; 0 without one."""


class Schemas:
    """The schemas of one tenant at one time; never changed: compiled layouts are kept by it."""

    def __init__(self, versions: Mapping[str, Mapping[int, Schema]] | None = None) -> None:
        self._versions = {name: dict(found) for name, found in (versions or {}).items()}
        self._layouts: dict[tuple[str, int, str | None], Layout] = {}

    def names(self) -> list[str]:
        return sorted(self._versions)

    def versions(self, name: str) -> list[Schema]:
        """Return the versions of a schema, the newest first."""
        found = self._versions.get(name, {})
        return [found[number] for number in sorted(found, reverse=True)]

    def newest(self, name: str) -> int:
        return max(self._versions.get(name, {}), default=0)

    def find(self, name: str, version: int | None, message_type: str | None) -> Layout:
        """See `SchemaLookup`."""
        number = self.newest(name) if version is None else version
        known = self._layouts.get((name, number, message_type))
        if known is None:
            known = self._layout(name, number, message_type)
            self._layouts[name, number, message_type] = known
        return known

    def _layout(self, name: str, version: int, message_type: str | None) -> Layout:
        if name == SPARKPLUG_B:
            if message_type is not None or version:
                raise UnknownSchema(f"{SPARKPLUG_B} has neither versions nor message types")
            return pack(SPARKPLUG_LAYOUT, SPARKPLUG_B)
        versions = self._versions.get(name)
        if not versions:
            raise UnknownSchema(f"there is no schema {name[:100]!r}", self._hint(name))
        schema = versions.get(version)
        if schema is None:
            known = ", ".join(map(str, sorted(versions, reverse=True)[:20]))
            raise UnknownSchema(f"schema {name!r} has no version {version}", f"there are: {known}")
        label = f"schema {name}:{version}"
        if schema.type == "avro":
            if message_type is not None:
                raise UnknownSchema(f"schema {name!r} is of Avro, which has no message types")
            return pack(schema.layout, label)
        root = schema.layout["root"]
        if message_type is not None:
            root = find_message(schema.layout, message_type)
        return pack(rooted(schema.layout, root), f"{label} {root}")

    def _hint(self, name: str) -> str:
        known = (*self._versions, SPARKPLUG_B)
        fallback = "POST /schemas registers one; docs/schemas.md has examples"
        return did_you_mean(name, known, 0.7) or fallback


NO_SCHEMAS = Schemas()


@dataclass(slots=True)
class Noted:
    """A lookup that notes the schemas asked for, found or not.

    Attributes:
        uses: In the order asked.
        layouts: Layouts of those that were found, by hash.
    """

    schemas: SchemaLookup
    uses: dict[SchemaUse, None] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)

    def find(self, name: str, version: int | None, message_type: str | None) -> Layout:
        """See `SchemaLookup`."""
        if name != SPARKPLUG_B:
            number = self.newest(name) if version is None else version
            self.uses[SchemaUse(name, number, version is None)] = None
        found = self.schemas.find(name, version, message_type)
        self.layouts[found.hash] = found
        return found

    def newest(self, name: str) -> int:
        """See `SchemaLookup`."""
        return self.schemas.newest(name)

    def whole(self, expression: str) -> str:
        """Return an expression with the layouts that it names."""
        named = [one for hash_, one in self.layouts.items() if hash_ in expression]
        return wrap(expression, named)

    def newest_used(self) -> dict[str, int]:
        """Return the versions of those that were asked for without one."""
        return {use.name: use.version for use in self.uses if use.is_newest}


class SchemaRegistry:
    """All schemas, by tenant; kept up to date by `apply`. Not for several threads at once."""

    def __init__(self) -> None:
        self._schemas: dict[str, dict[str, dict[int, Schema]]] = {}
        self._snapshots: dict[str, Schemas] = {}

    def of(self, tenant: str) -> Schemas:
        """Return a tenant's schemas as they are now: the same object until one changes."""
        found = self._snapshots.get(tenant)
        if found is None:
            found = Schemas(self._schemas.get(tenant))
            self._snapshots[tenant] = found
        return found

    def apply(self, fact: Fact) -> None:
        """Take a record of `mqlake.rules`.

        Raises:
            InvalidRecord: It is of another form.
        """
        found = fact.content(Schema.model_validate_json)
        tenant, name = fact.name
        schemas = self._schemas.setdefault(tenant, {})
        keep(schemas.setdefault(name, {}), fact.version, found)
        if not schemas[name]:
            del schemas[name]
        self._snapshots.pop(tenant, None)


def compile_schema(body: SchemaBody) -> dict[str, Any]:
    """Return the layout of a schema.

    Raises:
        SchemaError: Its text cannot be used.
    """
    if body.type == "avro":
        return compile_avro(body.source)
    return compile_protobuf(body.source, body.message_type)


def wrap(expression: str, layouts: Iterable[Layout]) -> str:
    """Return an expression that brings along the layouts that it names by their hashes."""
    texts = ", ".join(f"'{text}'" for text in dict.fromkeys(one.text for one in layouts))
    return f"IF(mqlake_layouts({texts}), {expression}, NULL)" if texts else expression
