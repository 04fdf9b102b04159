"""Lists a page at a time: `limit` items, then a cursor that asks for the next page.

A cursor is where the page before ended, so that items that come or go meanwhile shift nothing.
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Final, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from api.web.problems import Problem
from mqlake.records.tenants import TenantName

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Item = TypeVar("Item")

MAX_LIMIT: Final = 1_000
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="maximum number of items on a page")]
Cursor = Annotated[
    str | None, Query(description="`next_cursor` of the previous page; omitted: the first page")
]
Tenant = Annotated[TenantName, Query(description="name of the tenant")]

DEFAULT_LIMIT = 100


class Page(BaseModel, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = Field(description="cursor of the next page; null: this is the last")


def to_page(found: list[Item], limit: int, key: Callable[[Item], tuple[str, ...]]) -> Page[Item]:
    """Return found items as a page: one more than its limit says that there are others.

    Args:
        found: At most one more than the limit.
        limit: Items of the page.
        key: Tells where an item stands, as `read_cursor` is to return it.
    """
    items = found[:limit]
    next_cursor = write_cursor(*key(items[-1])) if len(found) > limit else None
    return Page(items=items, next_cursor=next_cursor)


def write_cursor(*parts: str) -> str:
    """Return a cursor that holds the keys of a page's last item."""
    text = json.dumps(parts, ensure_ascii=False)  # escaped, a long name were three times as long
    return urlsafe_b64encode(text.encode(errors="replace")).decode().rstrip("=")


def read_cursor(cursor: str | None, parts: int) -> list[str]:
    """Undo `write_cursor`; empty texts, which are before everything, for None.

    Raises:
        Problem: It is none of ours.
    """
    if cursor is None:
        return [""] * parts
    try:
        found = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        found = None
    if (
        not isinstance(found, list)
        or len(found) != parts
        or not all(isinstance(part, str) and _SURROGATE.search(part) is None for part in found)
    ):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "the cursor is not one that a page before gave"
        )
    return found
