"""Reference tables: upload, list, read, go back to earlier versions, delete."""

import json
import threading
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from api.references.materialised import MaterialisedReferences, Reference
from api.references.reading import Format, Upload, read_schema, read_upload
from api.references.tables import ReferenceTables, Version
from api.references.views import (
    ReferenceVersionView,
    ReferenceView,
    RowsPage,
    view_reference,
    view_version,
)
from api.web.pages import (
    DEFAULT_LIMIT,
    Cursor,
    Limit,
    Page,
    Tenant,
    read_cursor,
    to_page,
    write_cursor,
)
from api.web.problems import Problem, ProblemDetails
from api.wiring.dependencies import ChangeReferences, KnownReferences, Tables
from mqlake.records.references import reference_table
from mqlake.records.tenants import DEFAULT_TENANT
from rules.references import MAX_BYTES, MAX_DESCRIPTION_CHARACTERS, ReferenceId

router = APIRouter(tags=["references"], responses={503: {"model": ProblemDetails}})

ANSWER_SECONDS: Final = 10.0
"""How long a change waits for the application that writes tables."""
_CSV: Final = "text/csv"
_JSON: Final = "application/json"
_JSON_LINES: Final = "application/x-ndjson"
_FORMATS: Final[dict[str, Format]] = {_CSV: "csv", _JSON: "json", _JSON_LINES: "json"}
_DELIMITERS: Final = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {404: {"model": ProblemDetails}}
_CHANGE: Final[dict[int | str, dict[str, Any]]] = {
    202: {"model": ReferenceView, "description": "accepted; the table is not written yet"},
}
_one_at_a_time: Final = threading.Lock()
"""Held while an upload is read: the largest takes 5 seconds and 400 MiB."""
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "The rows: CSV with the names of the columns in its first line, or JSON "
        "objects, in an array or one a line",
        "content": {
            _CSV: {"schema": {"type": "string"}},
            _JSON_LINES: {"schema": {"type": "string"}},
            _JSON: {
                "schema": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
                    },
                }
            },
        },
    }
}

IdPath = Annotated[ReferenceId, Path(alias="id", description="identifier of a reference table")]
Wait = Annotated[float, Query(ge=0, le=60, description="maximum seconds to wait for the table")]


class UploadProblemDetails(ProblemDetails):
    """The body of an error answer that may be about the rows of an upload."""

    line: int | None = Field(default=None, description="1-based, in the upload")
    column: str | None = Field(default=None, description="name of the column")


@router.get("/references")
def get_references(
    references: KnownReferences,
    tenant: Tenant = DEFAULT_TENANT,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[ReferenceView]:
    """List reference tables by identifier."""
    (after,) = read_cursor(cursor, 1)
    found = [
        _view(tenant, reference_id, reference)
        for reference_id, reference in references.all(tenant)
        if reference_id > after
    ]
    return to_page(found[: limit + 1], limit, lambda view: (view.id,))


@router.put(
    "/references/{id:segment}",
    max_body_size=MAX_BYTES,
    response_model=ReferenceView,
    openapi_extra=_BODY,
    responses={
        **_CHANGE,
        201: {"model": ReferenceView, "description": "created"},
        **{code: {"model": ProblemDetails} for code in (409, 413, 415, 507)},
        422: {"model": UploadProblemDetails},
    },
)
async def put_reference(
    request: Request,
    response: Response,
    references: KnownReferences,
    changes: ChangeReferences,
    reference_id: IdPath,
    tenant: Tenant = DEFAULT_TENANT,
    schema: Annotated[
        str | None,
        Query(description="columns as `name TYPE, …`; omitted: inferred"),
    ] = None,
    key: Annotated[
        str | None,
        Query(description="columns that identify a row, comma-separated; omitted: the first"),
    ] = None,
    delimiter: Annotated[
        Literal["comma", "semicolon", "tab", "bar"], Query(description="of the cells of a CSV")
    ] = "comma",
    description: Annotated[
        str, Query(max_length=MAX_DESCRIPTION_CHARACTERS, description="for people")
    ] = "",
    wait: Wait = ANSWER_SECONDS,
) -> ReferenceView:
    """Create or replace a reference table.

    The rows replace all earlier ones, as a new version, and are safe when this answers. It waits
    until they are in the table; 202 and `writing` if Spark, which writes it, takes longer or is
    down. 507: the log is full, and so is the disk that the rows would be on; nothing is kept.
    """
    format_ = _format(request)
    data = await _body(request)

    def change() -> ReferenceView:
        upload = _read(data, format_, schema, key, _DELIMITERS[delimiter])
        known = references.get(tenant, reference_id)
        is_new = known is None or not known.exists
        number = changes.put(tenant, reference_id, upload, description)
        response.status_code = HTTPStatus.CREATED if is_new else HTTPStatus.OK
        return _answer(response, references, tenant, reference_id, number, wait)

    # Reading a large upload takes a while: not in the loop that answers everybody.
    return await run_in_threadpool(change)


@router.get("/references/{id:segment}", responses=_NOT_FOUND)
def get_reference(
    references: KnownReferences, reference_id: IdPath, tenant: Tenant = DEFAULT_TENANT
) -> ReferenceView:
    """Show a reference table.

    The answer has its columns, its version, and whether a change is being made.
    """
    return _view(tenant, reference_id, _existing(references, tenant, reference_id))


@router.get("/references/{id:segment}/rows", responses=_NOT_FOUND)
def get_rows(
    references: KnownReferences,
    tables: Tables,
    reference_id: IdPath,
    tenant: Tenant = DEFAULT_TENANT,
    version: Annotated[
        int | None, Query(ge=0, description="an earlier version; omitted: the newest")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> RowsPage:
    """List rows by key.

    All pages are of one version, despite uploads meanwhile.
    """
    found = _existing(references, tenant, reference_id)
    if found.table is None or found.version is None:
        raise Problem(HTTPStatus.NOT_FOUND, f"reference table {reference_id!r} has no rows yet")
    after: list[Any] | None = None
    if cursor is not None:
        asked, values = read_cursor(cursor, 2)
        version, after = _read_place(asked, values)
    elif version is None:
        version = found.version
    key = found.table.key
    if version != found.version:
        key = _version(tables, tenant, reference_id, version).key
    if after is not None and len(after) != len(key):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the cursor is not one of this table")
    rows = tables.rows(tenant, reference_id, version, key, after, limit + 1)
    next_cursor = None
    if len(rows) > limit:
        last = [rows[limit - 1][name] for name in key]
        next_cursor = write_cursor(str(version), json.dumps(last))
    return RowsPage(version=version, items=rows[:limit], next_cursor=next_cursor)


@router.get("/references/{id:segment}/versions", responses=_NOT_FOUND)
def get_versions(
    references: KnownReferences,
    tables: Tables,
    reference_id: IdPath,
    tenant: Tenant = DEFAULT_TENANT,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[ReferenceVersionView]:
    """List versions of a reference table.

    The newest come first; they are kept for 30 days.
    """
    found = _existing(references, tenant, reference_id)
    (after,) = read_cursor(cursor, 1)
    if after and not after.isdecimal():
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the cursor is not one of this list")
    if found.version is None:
        return Page(items=[], next_cursor=None)
    versions = tables.versions(tenant, reference_id)
    views = [view_version(one) for one in versions if not after or one.version < int(after)]
    return to_page(views[: limit + 1], limit, lambda view: (str(view.version),))


@router.post(
    "/references/{id:segment}/versions/{version:segment}/rollback",
    responses={**_CHANGE, **_NOT_FOUND},
)
def post_rollback(
    response: Response,
    references: KnownReferences,
    changes: ChangeReferences,
    tables: Tables,
    reference_id: IdPath,
    version: Annotated[int, Path(ge=0, description="the version to restore")],
    tenant: Tenant = DEFAULT_TENANT,
    wait: Wait = ANSWER_SECONDS,
) -> ReferenceView:
    """Roll back a reference table.

    The rows and columns of an earlier version become a new version.
    """
    _existing(references, tenant, reference_id)
    _version(tables, tenant, reference_id, version)
    number = changes.roll_back(tenant, reference_id, version)
    return _answer(response, references, tenant, reference_id, number, wait)


@router.delete(
    "/references/{id:segment}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={404: {"model": ProblemDetails}, 202: {"description": "accepted; not deleted yet"}},
)
def delete_reference(
    response: Response,
    references: KnownReferences,
    changes: ChangeReferences,
    reference_id: IdPath,
    tenant: Tenant = DEFAULT_TENANT,
    wait: Wait = ANSWER_SECONDS,
) -> None:
    """Delete a reference table.

    All its versions are deleted; rules that join it fail with an error.
    """
    number = changes.delete(tenant, reference_id)
    found = references.await_answer(tenant, reference_id, number, wait)
    if found is None or not found.is_answered:
        response.status_code = HTTPStatus.ACCEPTED


def _existing(references: MaterialisedReferences, tenant: str, reference_id: str) -> Reference:
    found = references.get(tenant, reference_id)
    if found is None or not found.exists:
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no reference table {reference_id!r}")
    return found


def _version(tables: ReferenceTables, tenant: str, reference_id: str, version: int) -> Version:
    for one in tables.versions(tenant, reference_id):
        if one.version == version:
            return one
    raise Problem(
        HTTPStatus.NOT_FOUND,
        f"reference table {reference_id!r} has no version {version} (any more)",
    )


def _answer(
    response: Response,
    references: MaterialisedReferences,
    tenant: str,
    reference_id: str,
    number: int,
    wait: float,
) -> ReferenceView:
    found = references.await_answer(tenant, reference_id, number, wait)
    assert found is not None
    if not found.is_answered:
        response.status_code = HTTPStatus.ACCEPTED
    return _view(tenant, reference_id, found)


def _view(tenant: str, reference_id: str, reference: Reference) -> ReferenceView:
    return view_reference(reference_id, reference_table(tenant, reference_id), reference)


def _format(request: Request) -> Format:
    given = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    format_ = _FORMATS.get(given)
    if format_ is None:
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Type is {given or 'missing'}, expected one of {', '.join(_FORMATS)}",
        )
    return format_


def _read(
    data: bytes, format_: Format, schema: str | None, key: str | None, delimiter: str
) -> Upload:
    """Read an upload as the parameters say."""
    columns = None if schema is None else read_schema(schema)
    keys = None if key is None else [one.strip() for one in key.split(",")]
    with _one_at_a_time:
        return read_upload(data, format_, schema=columns, key=keys, delimiter=delimiter)


async def _body(request: Request) -> bytes:
    """Return the body, as long as it is not too large."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BYTES:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the upload has more than {MAX_BYTES // 1024**2} MiB",
            )
        parts.append(part)
    return b"".join(parts)


def _read_place(version: str, values: str) -> tuple[int, list[Any]]:
    """Return version and key that a cursor holds."""
    try:
        found = json.loads(values)
        if isinstance(found, list) and all(isinstance(one, str | int | float) for one in found):
            return int(version), found
    except (ValueError, RecursionError):
        pass
    raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the cursor is not one of this table")
