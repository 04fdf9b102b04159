"""Room for keys, accounts and sessions: how many there may be, of all, of a tenant and of one.

A tenant cannot take the room of the others, nor one key that of its tenant.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from api.log.repository import InTheWay
from mqlake.records.access import SubjectKind

MAX_KEYS: Final = 10_000
MAX_ACCOUNTS: Final = 10_000
MAX_SESSIONS: Final = 10_000
MAX_OF_TENANT: Final = 1_000
"""Most keys for a tenant, alone or with others; as many accounts, and as many sessions."""
MAX_SESSIONS_OF_ONE: Final = 20
"""Most sessions of one key, account or token: with another one the oldest of them ends."""

Tenants = tuple[str, ...] | None
"""For whom something is; None: for all, and for data of no tenant."""


@dataclass(slots=True, frozen=True)
class HeldSession:
    """A session that has not ended."""

    id: str
    created_at: int
    subject: tuple[SubjectKind, str]
    """Owner of the session."""
    tenants: Tenants
    is_root: bool
    """It belongs to an administrator of all tenants."""


def need_room(
    what: str, wanted: Tenants, there: Iterable[Tenants], most: int, *, replaced: Tenants = ()
) -> None:
    """Accept one more key, or account.

    Args:
        what: Name of the things, for the error.
        wanted: Tenants of the new one.
        there: Tenants of each existing one.
        most: Bound for all tenants together.
        replaced: Tenants that the same one had before; it has taken their room already.

    Raises:
        InTheWay: There are too many.
    """
    found = list(there)
    counts = Counter(tenant for tenants in found for tenant in tenants or ())
    for tenant in sorted(set(wanted or ()) - set(replaced or ())):
        if counts[tenant] >= MAX_OF_TENANT:
            raise InTheWay(
                f"there are {MAX_OF_TENANT} {what} for tenant {tenant!r}, which is the limit: "
                "delete some"
            )
    if len(found) >= most:
        raise InTheWay(f"there are {most} {what}, which is the limit: delete some")


def sessions_to_end(new: HeldSession, there: Sequence[HeldSession]) -> list[str]:
    """Return the identifiers of sessions that end so that there is room for a new one.

    Too many of one subject: its oldest. Too many for a tenant: the oldest of the subject that has
    most of these, none that is for more tenants than the new one. Too many of all: the oldest for
    the tenant that has most, and one of an administrator of all tenants only for another such.

    Raises:
        InTheWay: None of them may end for it.
    """
    left = sorted(there, key=lambda one: (one.created_at, one.id))
    ended: list[str] = []

    def end(one: HeldSession) -> None:
        left.remove(one)
        ended.append(one.id)

    own = [one for one in left if one.subject == new.subject]
    for one in own[: max(0, len(own) - MAX_SESSIONS_OF_ONE + 1)]:
        end(one)
    for tenant in new.tenants or ():
        of_tenant = [one for one in left if tenant in (one.tenants or ())]
        while len(of_tenant) >= MAX_OF_TENANT:
            oldest = _oldest_of_most_frequent(
                [one for one in of_tenant if set(one.tenants or ()) <= set(new.tenants or ())],
                lambda one: (one.subject,),
            )
            if oldest is None:
                raise InTheWay(
                    f"there are {MAX_OF_TENANT} sessions for tenant {tenant!r}, which is the limit"
                )
            of_tenant.remove(oldest)
            end(oldest)
    while len(left) >= MAX_SESSIONS:
        oldest = _oldest_of_most_frequent(
            [one for one in left if new.is_root or not one.is_root],
            lambda one: (None,) if one.tenants is None else one.tenants,
        )
        if oldest is None:
            raise InTheWay(f"there are {MAX_SESSIONS} sessions, which is the limit")
        end(oldest)
    return ended


def _oldest_of_most_frequent(
    found: Sequence[HeldSession], names_of: Callable[[HeldSession], Sequence[Hashable]]
) -> HeldSession | None:
    """Return the oldest session of the name that most have; None: there is none.

    Args:
        found: The oldest first.
        names_of: Returns the names that a session counts for.
    """
    counts = Counter(name for one in found for name in names_of(one))
    most = max(counts.values(), default=0)
    return next((one for one in found if any(counts[name] == most for name in names_of(one))), None)
