"""Members of the control records between owners of shards and holders of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqlake.errors import InvalidRecord

if TYPE_CHECKING:
    from mqlake.records.shards import Key


def key_of(value: dict[str, Any]) -> Key:
    """Return whose session a control record is about.

    Raises:
        InvalidRecord: A member is missing.
    """
    tenant, client_id = value.get("tenant"), value.get("client_id")
    if type(tenant) is not str or type(client_id) is not str:
        raise InvalidRecord("tenant and client_id are missing, expected those of a session")
    return (tenant, client_id)


def keys_of(value: dict[str, Any]) -> list[Key]:
    """Return whose sessions a control record is about.

    Raises:
        InvalidRecord: The member is missing, or malformed.
    """
    keys = value.get("keys")
    if type(keys) is not list:
        raise InvalidRecord("member 'keys' is missing, expected pairs of tenant and client_id")
    try:
        return [(str(tenant), str(client_id)) for tenant, client_id in keys]
    except (TypeError, ValueError) as exc:
        raise InvalidRecord(f"member 'keys' is malformed: {exc}") from exc


def number_of(value: dict[str, Any], name: str) -> int:
    """Return a number that a control record has.

    Raises:
        InvalidRecord: It is missing, or none.
    """
    number = value.get(name)
    if type(number) is not int:
        raise InvalidRecord(f"member {name!r} is {number!r}, expected a number")
    return number
