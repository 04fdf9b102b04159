"""Schemas of payloads: list, register, change, delete; which rules decode by them."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response

from api.rules.materialised import MaterialisedRules
from api.schemas.changes import SchemaChanges
from api.schemas.views import SPARKPLUG_VIEW, NewSchema, SchemaDetails, SchemaView, view_schema
from api.web.pages import DEFAULT_LIMIT, Cursor, Limit, Page, Tenant, read_cursor, to_page
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import ChangeSchemas, KnownRules
from mqlake.records.tenants import DEFAULT_TENANT
from rules.schemas.model import SPARKPLUG_B, SchemaBody

router = APIRouter(
    tags=["schemas"],
    responses={code: {"model": ProblemDetails} for code in (422, 503)},
)

Name = Annotated[str, Path(description="name of a schema")]
Number = Annotated[int, Path(ge=1, description="number of a version")]
_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {404: {"model": ProblemDetails}}
_CHANGE: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": ProblemDetails} for code in (404, 409)
}


@router.get("/schemas")
def get_schemas(
    rules: KnownRules,
    tenant: Tenant = DEFAULT_TENANT,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[SchemaView]:
    """List schemas by name.

    Each is in its newest version.
    """
    (after,) = read_cursor(cursor, 1)
    schemas = rules.schemas(tenant)
    names = sorted(name for name in (*schemas.names(), SPARKPLUG_B) if name > after)
    views = [
        SPARKPLUG_VIEW if name == SPARKPLUG_B else view_schema(schemas.versions(name)[0])
        for name in names[: limit + 1]
    ]
    return to_page(views, limit, lambda view: (view.name,))


@router.post("/schemas", status_code=HTTPStatus.CREATED, responses={409: {"model": ProblemDetails}})
def post_schema(
    response: Response,
    _rules: KnownRules,
    changes: ChangeSchemas,
    new: NewSchema,
    tenant: Tenant = DEFAULT_TENANT,
) -> SchemaView:
    """Register a schema.

    It is checked; rules can name it when this answers.
    """
    schema = changes.create(tenant, new.name, new.body())
    response.headers["ETag"] = f'"{schema.version}"'
    return view_schema(schema)


@router.get("/schemas/{name:segment}", responses=_NOT_FOUND)
def get_schema(
    rules: KnownRules, changes: ChangeSchemas, name: Name, tenant: Tenant = DEFAULT_TENANT
) -> SchemaDetails:
    """Show a schema.

    The answer has its newest version, its versions and the rules that decode with it.
    """
    return _details(rules, changes, tenant, name)


@router.put("/schemas/{name:segment}", responses=_CHANGE)
def put_schema(
    response: Response,
    _rules: KnownRules,
    changes: ChangeSchemas,
    name: Name,
    body: SchemaBody,
    tenant: Tenant = DEFAULT_TENANT,
) -> SchemaView:
    """Change a schema.

    The text becomes a new version; without a difference nothing happens. Rules that name no version
    decode with the new one: the engine compiles them again, and it applies from one offset on, as
    when a rule is changed.
    """
    schema = changes.replace(tenant, name, body)
    response.headers["ETag"] = f'"{schema.version}"'
    return view_schema(schema)


@router.delete("/schemas/{name:segment}", status_code=HTTPStatus.NO_CONTENT, responses=_CHANGE)
def delete_schema(
    _rules: KnownRules, changes: ChangeSchemas, name: Name, tenant: Tenant = DEFAULT_TENANT
) -> None:
    """Delete a schema.

    Its versions are deleted too; 409 if rules decode with it, even disabled ones.
    """
    changes.delete(tenant, name)


@router.get("/schemas/{name:segment}/versions", responses=_NOT_FOUND)
def get_schema_versions(
    rules: KnownRules, changes: ChangeSchemas, name: Name, tenant: Tenant = DEFAULT_TENANT
) -> Page[SchemaView]:
    """List versions of a schema.

    The newest come first.
    """
    _details(rules, changes, tenant, name)
    versions = rules.schemas(tenant).versions(name)
    return Page(items=[view_schema(one) for one in versions], next_cursor=None)


@router.get("/schemas/{name:segment}/versions/{version:segment}", responses=_NOT_FOUND)
def get_schema_version(
    rules: KnownRules, name: Name, version: Number, tenant: Tenant = DEFAULT_TENANT
) -> SchemaView:
    """Show a version of a schema."""
    for one in rules.schemas(tenant).versions(name):
        if one.version == version:
            return view_schema(one)
    raise Problem(HTTPStatus.NOT_FOUND, f"there is no version {version} of a schema {name!r}")


@router.delete(
    "/schemas/{name:segment}/versions/{version:segment}",
    status_code=HTTPStatus.NO_CONTENT,
    responses=_CHANGE,
)
def delete_schema_version(
    _rules: KnownRules,
    changes: ChangeSchemas,
    name: Name,
    version: Number,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Delete an older version.

    409 if rules decode with it, or if it is the newest of several.
    """
    changes.delete(tenant, name, version)


def _details(
    rules: MaterialisedRules, changes: SchemaChanges, tenant: str, name: str
) -> SchemaDetails:
    versions = rules.schemas(tenant).versions(name)
    if name == SPARKPLUG_B:
        return SchemaDetails(**dict(SPARKPLUG_VIEW), versions=[], rules=[])
    if not versions:
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no schema {name!r}")
    return SchemaDetails(
        **dict(view_schema(versions[0])),
        versions=[one.version for one in versions],
        rules=changes.users(tenant, name),
    )
