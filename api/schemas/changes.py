"""Changes of schemas: each is a record of `mqlake.rules` with a new version.

A version never changes and its number is not used again as long as the schema exists; versions that
rules need are not deleted. Rules that name no version go on with the newest: the engine sees to it.
"""

from collections.abc import Sequence
from contextlib import suppress

from api.log.repository import InTheWay, NotThere, RecordKind, Repository
from api.rules.checking import compiled
from api.rules.materialised import Entry, MaterialisedRules
from mqlake.records.messages import RULES
from mqlake.records.schemas import SchemaKey, schema_key
from rules.errors import RuleError
from rules.language.compiler import compile_rule
from rules.schemas.model import MAX_SCHEMAS, MAX_VERSIONS, SPARKPLUG_B, Schema, SchemaBody
from rules.schemas.registry import Noted, SchemaUse, compile_schema


class SchemaChanges(Repository[SchemaKey, Schema, MaterialisedRules]):
    """Writes changes; the view has the rules, too."""

    kind = RecordKind(
        RULES,
        schema_key,
        lambda schema: schema.model_dump_json().encode(),
        lambda key: f"schema {key.name}",
    )

    def create(self, tenant: str, name: str, body: SchemaBody) -> Schema:
        """Register a schema.

        Raises:
            InTheWay: There is one of this name.
            InTheWay: There are as many as there may be.
            SchemaError: Its text cannot be used.
            LogError: The log does not answer; the other methods raise it too.
        """
        layout = compile_schema(body)
        with self._lock:
            schemas = self._view.schemas(tenant)
            if name == SPARKPLUG_B or schemas.newest(name):
                raise InTheWay(f"there is a schema {name!r}: change it with PUT")
            if len(schemas.names()) >= MAX_SCHEMAS:
                raise InTheWay(f"there are {MAX_SCHEMAS} schemas, which is the limit")
            now_ms = self._clock.now_ms()
            schema = Schema(
                **dict(body), name=name, tenant=tenant, created_at=now_ms, layout=layout
            )
            self.write([(_key(schema), schema)])
            return schema

    def replace(self, tenant: str, name: str, body: SchemaBody) -> Schema:
        """Give a schema another text, as a new version; without a difference nothing happens.

        Raises:
            NotThere: There is none.
            InTheWay: It has as many versions as there may be.
            SchemaError: Its text cannot be used.
        """
        layout = compile_schema(body)
        with self._lock:
            versions = self._view.schemas(tenant).versions(name)
            if not versions:
                raise NotThere(f"there is no schema {name!r}")
            if body_of(versions[0]) == body:
                return versions[0]
            if len(versions) >= MAX_VERSIONS:
                raise InTheWay(
                    f"schema {name!r} has {MAX_VERSIONS} versions, which is the limit: delete some"
                )
            schema = Schema(
                **dict(body),
                name=name,
                tenant=tenant,
                version=versions[0].version + 1,
                created_at=self._clock.now_ms(),
                layout=layout,
            )
            self.write([(_key(schema), schema)])
            return schema

    def delete(self, tenant: str, name: str, version: int | None = None) -> None:
        """Delete a schema, or one version of it.

        Raises:
            NotThere: There is none.
            InTheWay: Rules decode by it.
        """
        with self._lock:
            versions = self._view.schemas(tenant).versions(name)
            gone = [one for one in versions if version in (None, one.version)]
            if not gone:
                what = f"there is no schema {name!r}"
                raise NotThere(what if version is None else f"{what} with version {version}")
            if version is not None and version == versions[0].version and len(versions) > 1:
                # Its number would be given to another text.
                raise InTheWay(
                    f"version {version} of schema {name!r} is the newest: it goes with the schema"
                )
            users = self.users(tenant, name, version)
            if users:
                what = f"schema {name!r}" if version is None else f"schema '{name}:{version}'"
                shown = ", ".join(users[:20]) + (", …" if len(users) > 20 else "")
                raise InTheWay(f"{what} is used by rules: {shown}")
            self.write([(_key(one), None) for one in gone])

    def users(self, tenant: str, name: str, version: int | None = None) -> list[str]:
        """Return the rules that decode by a schema, or by one version; also those that rest."""
        return [
            entry.rule.id
            for entry in self._view.all(tenant)
            if any(
                use.name == name and version in (None, use.version) for use in schema_uses(entry)
            )
        ]


def schema_uses(entry: Entry) -> Sequence[SchemaUse]:
    """Return the schemas of a rule; of one that does not compile the first that it asks for."""
    if "decode" not in entry.rule.sql.lower():  # nearly all: they need not be compiled for this
        return ()
    try:
        return compiled(entry.rule.sql, entry.schemas).schemas
    except RuleError:
        noted = Noted(entry.schemas)
        with suppress(RuleError):
            compile_rule(entry.rule.sql, schemas=noted)
        return tuple(noted.uses)


def body_of(schema: Schema) -> SchemaBody:
    """Return the user's part of a schema."""
    return SchemaBody(**{name: getattr(schema, name) for name in SchemaBody.model_fields})


def _key(schema: Schema) -> SchemaKey:
    return SchemaKey(schema.tenant, schema.name, schema.version)
