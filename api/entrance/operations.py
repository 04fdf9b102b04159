"""Operations that are open to a caller, as the OpenAPI document says it of each."""

from typing import Any

from api.access.callers import Caller
from api.entrance.authentication import ROLE_FIELD, TENANTS_FIELD, TOPICS_FIELD


def open_to(caller: Caller, document: dict[str, Any], prefix: str) -> list[str]:
    """Return the operations open to a caller, as `GET /clients`, in the order of the document.

    Each operation may still refuse a request, for a tenant or topic, say, that is not the
    caller's.
    """
    return [
        f"{method.upper()} {path.removeprefix(prefix)}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not operation.get("security") or _is_open(caller, operation)
    ]


def _is_open(caller: Caller, operation: dict[str, Any]) -> bool:
    return (
        caller.may(operation[ROLE_FIELD])
        and (caller.topic_filters is None or operation.get(TOPICS_FIELD, False))
        and (caller.tenants is None or operation[TENANTS_FIELD])
    )
