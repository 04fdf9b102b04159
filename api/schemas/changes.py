"""Changes of schemas: each is a record of `mqlake.rules` with a new version.

A version never changes and its number is not used again as long as the schema exists; what rules
need is not deleted. Rules that name no version go on with the newest: the engine sees to that.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from api.following import Followed
from api.log import LogAppender
from api.rules.checking import compiled
from api.rules.materialised import Entry, MaterialisedRules
from mqlake.clock import Clock
from mqlake.errors import MqlakeError
from mqlake.log.blocking import Append
from mqlake.record_versions import VERSION_HEADER, Headers
from mqlake.records import RULES
from mqlake.schema_records import SchemaKey, schema_key
from rules.errors import RuleError
from rules.language.compiler import compile_rule
from rules.schemas.model import MAX_SCHEMAS, MAX_VERSIONS, SPARKPLUG_B, Schema, SchemaBody
from rules.schemas.registry import Noted, SchemaUse, compile_schema

_HEADERS: Final[Headers] = [VERSION_HEADER]


class SchemaExists(MqlakeError):  # noqa: N818 - it names what is in the way
    """The name is taken."""


class NoSchema(MqlakeError):  # noqa: N818
    """No such schema, or no such version of it."""


class SchemaInUse(MqlakeError):  # noqa: N818
    """Rules decode by it, or there is no room for another.

    Attributes:
        rules: Which.
    """

    def __init__(self, message: str, rules: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.rules = list(rules)


class SchemaChanges:
    """Writes changes, one after the other.

    One process writes schemas, so that its lock is enough to number versions.

    Args:
        log: Where to.
        view: Has all schemas and rules; takes what is written at once.
        clock: For the times in versions.
    """

    def __init__(self, log: LogAppender, view: MaterialisedRules, clock: Clock) -> None:
        self._log = log
        self._view = view
        self._clock = clock
        self._lock = threading.Lock()

    def create(self, tenant: str, name: str, body: SchemaBody) -> Schema:
        """Register a schema.

        Raises:
            SchemaExists: There is one of this name.
            SchemaInUse: There are as many as there may be.
            SchemaError: Its text cannot be used.
            LogError: The log does not answer; the other methods raise it too.
        """
        layout = compile_schema(body)
        with self._lock:
            schemas = self._view.schemas(tenant)
            if name == SPARKPLUG_B or schemas.newest(name):
                raise SchemaExists(f"there is a schema {name!r}: change it with PUT")
            if len(schemas.names()) >= MAX_SCHEMAS:
                raise SchemaInUse(f"there are {MAX_SCHEMAS} schemas, which is the limit")
            now_ms = self._clock.now_ms()
            schema = Schema(
                **dict(body), name=name, tenant=tenant, created_at=now_ms, layout=layout
            )
            self._append([(_key(schema), schema)])
            return schema

    def replace(self, tenant: str, name: str, body: SchemaBody) -> Schema:
        """Give a schema another text, as a new version; without a difference nothing happens.

        Raises:
            NoSchema: There is none.
            SchemaInUse: It has as many versions as there may be.
            SchemaError: Its text cannot be used.
        """
        layout = compile_schema(body)
        with self._lock:
            versions = self._view.schemas(tenant).versions(name)
            if not versions:
                raise NoSchema(f"there is no schema {name!r}")
            if body_of(versions[0]) == body:
                return versions[0]
            if len(versions) >= MAX_VERSIONS:
                raise SchemaInUse(
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
            self._append([(_key(schema), schema)])
            return schema

    def delete(self, tenant: str, name: str, version: int | None = None) -> None:
        """Delete a schema, or one version of it.

        Raises:
            NoSchema: There is none.
            SchemaInUse: Rules decode by it.
        """
        with self._lock:
            versions = self._view.schemas(tenant).versions(name)
            gone = [one for one in versions if version in (None, one.version)]
            if not gone:
                what = f"there is no schema {name!r}"
                raise NoSchema(what if version is None else f"{what} with version {version}")
            if version is not None and version == versions[0].version and len(versions) > 1:
                # Its number would be given to another text.
                raise SchemaInUse(
                    f"version {version} of schema {name!r} is the newest: it goes with the schema"
                )
            users = self.users(tenant, name, version)
            if users:
                what = f"schema {name!r}" if version is None else f"schema '{name}:{version}'"
                shown = ", ".join(users[:20]) + (", …" if len(users) > 20 else "")
                raise SchemaInUse(f"{what} is used by rules: {shown}", users)
            self._append([(_key(one), None) for one in gone])

    def users(self, tenant: str, name: str, version: int | None = None) -> list[str]:
        """Return the rules that decode by a schema, or by one version; also those that rest."""
        return [
            entry.rule.id
            for entry in self._view.all(tenant)
            if any(
                use.name == name and version in (None, use.version) for use in schema_uses(entry)
            )
        ]

    def _append(self, changes: Sequence[tuple[SchemaKey, Schema | None]]) -> None:
        records = [
            Append(
                0,
                schema_key(key),
                None if schema is None else schema.model_dump_json().encode(),
                _HEADERS,
            )
            for key, schema in changes
        ]
        offsets = self._log.append_all(RULES, records, what=f"schema {changes[0][0].name}")
        self._view.take(
            [
                Followed(RULES, offset, record.key, record.value)
                for offset, record in zip(offsets, records, strict=True)
            ],
            is_old=False,
        )


def schema_uses(entry: Entry) -> Sequence[SchemaUse]:
    """Return what a rule decodes by; of one that does not compile what it asks for first."""
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
    """Return what the user said of a schema."""
    return SchemaBody(**{name: getattr(schema, name) for name in SchemaBody.model_fields})


def _key(schema: Schema) -> SchemaKey:
    return SchemaKey(schema.tenant, schema.name, schema.version)
