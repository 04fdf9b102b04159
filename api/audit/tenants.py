"""The tenants of what a request is about: their administrators may see its row.

What is about no tenant alone, such as the rights of all clients, and what is not known, only
administrators of all tenants may see.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

from api.wiring.resources import ACCESS, ALARMS
from api.wiring.services import Services
from mqlake.records.access import Account, ApiKey
from mqlake.records.tenants import DEFAULT_TENANT, TENANT_PATTERN

Tenants = tuple[str, ...] | None
"""None: all, and what is of none."""


@dataclass(slots=True, frozen=True)
class Subject:
    """Subject of a request.

    Attributes:
        path: Path of the operation, below the prefix: `/rules/{id}`.
        parameters: Parameters of the path.
        tenant: In the query, if the operation has that parameter; None: it has not.
        asked: The body without secrets; None: there is none.
        caller: Name of the caller.
        caller_tenants: His.
    """

    path: str
    parameters: Mapping[str, str]
    tenant: str | None
    asked: Any
    caller: str
    caller_tenants: Tenants


Reader = Callable[[Services, Subject], Tenants]


def tenant_in(query: str) -> str:
    """Return the tenant that the parameters of a request name."""
    given = parse_qs(query).get("tenant")
    return given[-1] if given else DEFAULT_TENANT


def tenants_now(services: Services, subject: Subject) -> Tenants:
    """Return the tenants of what a request is about, as they are now; () for what is not there."""
    if subject.tenant is not None:
        return _named(subject.tenant)
    reader = READERS.get(subject.path)
    return None if reader is None else reader(services, subject)


def tenants_of_change(before: Tenants, after: Tenants) -> tuple[str, ...]:
    """Return the tenants of a row; (): only administrators of all tenants see it."""
    if before is None or after is None:
        return ()
    return tuple(sorted({*before, *after}))


def _named(tenant: str) -> Tenants:
    return (tenant,) if re.fullmatch(TENANT_PATTERN, tenant) else None


def _of(subject: ApiKey | Account | None) -> Tenants:
    return () if subject is None else subject.tenants


def _new(_services: Services, subject: Subject) -> Tenants:
    """Return the tenants of a key or account that is asked for; without any, they are its maker's.

    Before and after it is made they are the same: its identifier is not in the path.
    """
    asked = (subject.asked or {}).get("tenants")
    return subject.caller_tenants if asked is None else tuple(asked)


def _key(services: Services, subject: Subject) -> Tenants:
    return _of(services.kept[ACCESS].view.key(subject.parameters["id"]))


def _account(services: Services, subject: Subject) -> Tenants:
    return _of(services.kept[ACCESS].view.account(subject.parameters["name"]))


def _session(services: Services, subject: Subject) -> Tenants:
    view = services.kept[ACCESS].view
    session = view.session(subject.parameters["id"])
    if session is None:
        return ()
    if session.subject_kind == "token":
        return None
    is_key = session.subject_kind == "key"
    return _of(view.key(session.subject) if is_key else view.account(session.subject))


def _alarm(services: Services, subject: Subject) -> Tenants:
    known = services.kept[ALARMS].view.get(subject.parameters["id"])
    if known is None:
        return ()
    return None if known.alarm.tenant is None else (known.alarm.tenant,)


def _job(services: Services, subject: Subject) -> Tenants:
    job = services.runs.jobs.get(subject.parameters["id"])
    return () if job is None else (job.tenant,)


def _tenant(_services: Services, subject: Subject) -> Tenants:
    return _named(subject.parameters["name"])


def _caller(_services: Services, subject: Subject) -> Tenants:
    return subject.caller_tenants


def _login(services: Services, subject: Subject) -> Tenants:
    """Return the tenants of who has logged in, or of the account whose name is tried."""
    if subject.caller_tenants is not None:
        return subject.caller_tenants
    account = services.kept[ACCESS].view.account(subject.caller)
    return None if account is None else account.tenants


READERS: Final[Mapping[str, Reader]] = {
    **dict.fromkeys(("/keys", "/accounts"), _new),
    "/keys/{id}": _key,
    "/accounts/{name}": _account,
    "/sessions/{id}": _session,
    "/alarms/{id}/acknowledge": _alarm,
    **dict.fromkeys(("/jobs/{id}", "/jobs/{id}/resume"), _job),
    "/tenants/{name}": _tenant,
    **dict.fromkeys(("/logout", "/session/password"), _caller),
    **dict.fromkeys(("/login", "/login/oidc/callback"), _login),
}
"""Tenants of operations without a parameter `tenant`; others are about no tenant alone."""
