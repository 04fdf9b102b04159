"""The resources of the REST API that the log keeps.

Their parts, dependencies, followers, states in the audit log and what goes with a tenant follow
from these declarations.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from api.access.changes import AccessChanges
from api.access.materialised import MaterialisedAccess
from api.alarms.changes import AlarmChanges
from api.alarms.materialised import MaterialisedAlarms
from api.log.appending import LogAppender
from api.references.changes import ReferenceChanges
from api.references.materialised import MaterialisedReferences
from api.references.views import view_reference
from api.rules.changes import RuleChanges, body_of
from api.rules.materialised import MaterialisedRules
from api.rules.views import masked_body
from api.schemas.changes import SchemaChanges
from api.settings import ApiSettings
from api.tenants.bans import BanChanges, MaterialisedBans
from api.tenants.rights import MaterialisedRights, RightsChanges
from api.tenants.tenants import MaterialisedTenants, TenantChanges
from api.wiring.edges import Edges
from api.wiring.kept import OF_ALL_TENANTS, Changes, KeptPart, Resource, View
from mqlake.clock import Clock
from mqlake.records import messages as records
from mqlake.records.access import Account, ApiKey
from mqlake.records.references import reference_table
from mqlake.records.rule_tables import written_tables

Parameters = Mapping[str, str]
Counts = Mapping[str, int]


def _made(
    kind: Callable[[LogAppender, View, Clock], Changes],
) -> Callable[[ApiSettings, Edges, View], Changes]:
    """Return the maker of changes that need nothing else."""
    return lambda _settings, edges, view: kind(edges.log, view, edges.clock)


def _key(view: MaterialisedAccess, parameters: Parameters, _tenant: str) -> Any:
    key = view.key(parameters["id"])
    if key is None:
        return None
    return {"role": key.role, "description": key.description, **_rights_of(key)}


def _rights_of(subject: ApiKey | Account) -> dict[str, list[str] | None]:
    found = {"topic_filters": subject.topic_filters, "tenants": subject.tenants}
    return {name: None if one is None else list(one) for name, one in found.items()}


def _account(view: MaterialisedAccess, parameters: Parameters, _tenant: str) -> Any:
    account = view.account(parameters["name"])
    if account is None:
        return None
    return {
        "role": account.role,
        "password_changed_at": account.password_changed_at,
        **_rights_of(account),
    }


def _session(view: MaterialisedAccess, parameters: Parameters, _tenant: str) -> Any:
    session = view.session(parameters["id"])
    if session is None:
        return None
    # Of the token it has a hash.
    subject = None if session.subject_kind == "token" else session.subject
    return {"subject_kind": session.subject_kind, "subject": subject}


def _forget_access(its: KeptPart[MaterialisedAccess, AccessChanges], tenant: str) -> Counts:
    return {"keys_and_accounts": its.changes.forget_tenant(tenant)}


ACCESS: Final = Resource(
    log_topic=records.ACCESS,
    view=MaterialisedAccess,
    changes=lambda _, edges, view: AccessChanges(
        edges.log, view, edges.clock, edges.password_rounds
    ),
    states={"/keys/{id}": _key, "/accounts/{name}": _account, "/sessions/{id}": _session},
    forget_tenant={"access": _forget_access},
)


def _forget_alarms(its: KeptPart[MaterialisedAlarms, AlarmChanges], tenant: str) -> Counts:
    its.changes.forget_tenant(tenant)
    return {}


ALARMS: Final = Resource(
    log_topic=records.ALARMS,
    view=MaterialisedAlarms,
    changes=_made(AlarmChanges),
    states={},
    forget_tenant={"access": _forget_alarms},
)


def _ban(view: MaterialisedBans, parameters: Parameters, _tenant: str) -> Any:
    ban = view.get(parameters["id"])
    return None if ban is None else ban.model_dump(mode="json")


BANS: Final = Resource(
    log_topic=records.GATEWAYS,
    view=MaterialisedBans,
    changes=_made(BanChanges),
    states={"/bans/{id}": _ban},
    forget_tenant=OF_ALL_TENANTS,
)


def _rights(view: MaterialisedRights, _parameters: Parameters, _tenant: str) -> Any:
    rights = view.current
    return None if rights is None else rights.model_dump(mode="json", exclude_defaults=True)


RIGHTS: Final = Resource(
    log_topic=records.GATEWAYS,
    view=MaterialisedRights,
    changes=_made(RightsChanges),
    states={"/rights": _rights},
    forget_tenant=OF_ALL_TENANTS,
)


def _rule(view: MaterialisedRules, parameters: Parameters, tenant: str) -> Any:
    entry = view.get(tenant, parameters["id"])
    if entry is None:
        return None
    shown = masked_body(body_of(entry.rule)).model_dump(mode="json")
    return {"version": entry.rule.version, **shown}


def _delete_rules(its: KeptPart[MaterialisedRules, RuleChanges], tenant: str) -> Counts:
    rules = its.view.all(tenant)
    for entry in rules:
        its.changes.delete(tenant, entry.rule.id, None)
    return {"rules": len(rules)}


def _forget_rules(its: KeptPart[MaterialisedRules, RuleChanges], tenant: str) -> Counts:
    its.changes.forget(tenant)
    return {}


RULES: Final = Resource(
    log_topic=records.RULES,
    view=MaterialisedRules,
    changes=lambda settings, edges, view: RuleChanges(
        edges.log,
        view,
        edges.clock,
        partial(written_tables, settings.data_dir / "tables"),
        edges.answer_seconds,
    ),
    states=dict.fromkeys(("/rules/{id}", "/rules/{id}/versions/{version}/rollback"), _rule),
    forget_tenant={"definitions": _delete_rules, "last": _forget_rules},
)


def _schema(view: MaterialisedRules, parameters: Parameters, tenant: str) -> Any:
    versions = view.schemas(tenant).versions(parameters["name"])
    return {"versions": [one.version for one in versions]} if versions else None


def _delete_schemas(its: KeptPart[MaterialisedRules, SchemaChanges], tenant: str) -> Counts:
    names = its.view.schemas(tenant).names()
    for name in names:
        its.changes.delete(tenant, name)
    return {"schemas": len(names)}


SCHEMAS: Final = Resource(
    log_topic=records.RULES,
    view=RULES,
    changes=_made(SchemaChanges),
    states=dict.fromkeys(("/schemas/{name}", "/schemas/{name}/versions/{version}"), _schema),
    # After the rules: one that a rule needs is not deleted.
    forget_tenant={"definitions": _delete_schemas},
)


def _reference(view: MaterialisedReferences, parameters: Parameters, tenant: str) -> Any:
    found = view.get(tenant, parameters["id"])
    if found is None or not found.exists:
        return None
    table = reference_table(tenant, parameters["id"])
    return view_reference(parameters["id"], table, found).model_dump(mode="json")


def _delete_references(
    its: KeptPart[MaterialisedReferences, ReferenceChanges], tenant: str
) -> Counts:
    names = [name for name, one in its.view.all(tenant) if one.exists]
    for name in names:
        its.changes.delete(tenant, name)
    return {"references": len(names)}


def _forget_references(
    its: KeptPart[MaterialisedReferences, ReferenceChanges], tenant: str
) -> Counts:
    its.changes.forget(tenant)
    return {}


REFERENCES: Final = Resource(
    log_topic=records.RULES,
    view=MaterialisedReferences,
    changes=lambda settings, edges, view: ReferenceChanges(
        settings.data_dir, edges.log, view, edges.clock
    ),
    states=dict.fromkeys(
        ("/references/{id}", "/references/{id}/versions/{version}/rollback"), _reference
    ),
    forget_tenant={"definitions": _delete_references, "last": _forget_references},
)


def _tenant(view: MaterialisedTenants, parameters: Parameters, _tenant: str) -> Any:
    tenant = view.get(parameters["name"])
    return None if tenant is None else tenant.model_dump(mode="json")


def _forget_tenant(its: KeptPart[MaterialisedTenants, TenantChanges], tenant: str) -> Counts:
    its.changes.delete(tenant)
    return {}


TENANTS: Final = Resource(
    log_topic=records.GATEWAYS,
    view=MaterialisedTenants,
    changes=_made(TenantChanges),
    states={"/tenants/{name}": _tenant},
    forget_tenant={"last": _forget_tenant},
)

RESOURCES: Final[tuple[Resource[Any, Any], ...]] = (
    ACCESS,
    ALARMS,
    BANS,
    RIGHTS,
    RULES,
    SCHEMAS,
    REFERENCES,
    TENANTS,  # the last one that a tenant's deletion forgets
)
"""All; a step of a tenant's deletion goes through them in this order."""
