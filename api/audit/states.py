"""State of the resource at a path, as it is shown to callers who may not see secrets."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from api.references.views import view_reference
from api.rules.changes import body_of
from api.rules.views import masked_body
from api.services import Services
from mqlake.access_records import Account, ApiKey
from mqlake.errors import MqlakeError
from mqlake.reference_records import reference_table
from mqlake.retention import read_policies

Reader = Callable[[Services, Mapping[str, str], str], Any]
"""From services, parameters of the path and tenant to JSON; None: nothing is there."""


def state_at(path: str, services: Services, parameters: Mapping[str, str], tenant: str) -> Any:
    """Return the state of the resource at a path.

    Args:
        path: Of the operation, below the prefix: `/rules/{id}`.
        services: Know the state.
        parameters: Of the path.
        tenant: Whose it is.
    """
    reader = _READERS.get(path)
    if reader is None:
        return None
    try:
        return reader(services, parameters, tenant)
    except MqlakeError as exc:  # a damaged file, say
        return {"unreadable": str(exc)}


def masked_request(annotation: Any, body: bytes) -> Any:
    """Return the content of a body; None when it is not as the operation has it.

    Args:
        annotation: Type of the body; secrets in it are of a type that says so.
        body: JSON.
    """
    try:
        asked = TypeAdapter(annotation).validate_json(body)
    except ValidationError:
        return None
    if not isinstance(asked, BaseModel):
        return None
    found = asked.model_dump(mode="json", exclude_unset=True)
    if "actions" in found:  # not checked yet; the checked ones are in the state
        found["actions"] = [one["function"] for one in found["actions"]]
    return found


def _rule(services: Services, parameters: Mapping[str, str], tenant: str) -> Any:
    entry = services.rules.view.get(tenant, parameters["id"])
    if entry is None:
        return None
    shown = masked_body(body_of(entry.rule)).model_dump(mode="json")
    return {"version": entry.rule.version, **shown}


def _schema(services: Services, parameters: Mapping[str, str], tenant: str) -> Any:
    versions = services.rules.view.schemas(tenant).versions(parameters["name"])
    return {"versions": [one.version for one in versions]} if versions else None


def _reference(services: Services, parameters: Mapping[str, str], tenant: str) -> Any:
    found = services.rules.references.get(tenant, parameters["id"])
    if found is None or not found.exists:
        return None
    table = reference_table(tenant, parameters["id"])
    return view_reference(parameters["id"], table, found).model_dump(mode="json")


def _key(services: Services, parameters: Mapping[str, str], _tenant: str) -> Any:
    key = services.access.view.key(parameters["id"])
    if key is None:
        return None
    return {
        "role": key.role,
        "description": key.description,
        **_rights_of(key),
    }


def _rights_of(subject: ApiKey | Account) -> dict[str, list[str] | None]:
    found = {"topic_filters": subject.topic_filters, "tenants": subject.tenants}
    return {name: None if one is None else list(one) for name, one in found.items()}


def _account(services: Services, parameters: Mapping[str, str], _tenant: str) -> Any:
    account = services.access.view.account(parameters["name"])
    if account is None:
        return None
    return {
        "role": account.role,
        "password_changed_at": account.password_changed_at,
        **_rights_of(account),
    }


def _session(services: Services, parameters: Mapping[str, str], _tenant: str) -> Any:
    session = services.access.view.session(parameters["id"])
    if session is None:
        return None
    # Of the token it has a hash.
    subject = None if session.subject_kind == "token" else session.subject
    return {"subject_kind": session.subject_kind, "subject": subject}


def _ban(services: Services, parameters: Mapping[str, str], _tenant: str) -> Any:
    ban = services.gateways.bans.get(parameters["id"])
    return None if ban is None else ban.model_dump(mode="json")


def _rights(services: Services, _parameters: Mapping[str, str], _tenant: str) -> Any:
    rights = services.gateways.rights.current
    return None if rights is None else rights.model_dump(mode="json", exclude_defaults=True)


def _tenant(services: Services, parameters: Mapping[str, str], _of: str) -> Any:
    tenant = services.gateways.tenants.get(parameters["name"])
    return None if tenant is None else tenant.model_dump(mode="json")


def _retention(services: Services, _parameters: Mapping[str, str], _tenant: str) -> Any:
    return [asdict(one) for one in read_policies(services.settings.data_dir)]


_READERS: Final[Mapping[str, Reader]] = {
    **dict.fromkeys(("/rules/{id}", "/rules/{id}/versions/{version}/rollback"), _rule),
    **dict.fromkeys(("/schemas/{name}", "/schemas/{name}/versions/{version}"), _schema),
    "/references/{id}": _reference,
    "/references/{id}/versions/{version}/rollback": _reference,
    "/keys/{id}": _key,
    "/accounts/{name}": _account,
    "/sessions/{id}": _session,
    "/bans/{id}": _ban,
    "/rights": _rights,
    "/tenants/{name}": _tenant,
    "/retention": _retention,
}
