"""Rights of the caller who began a replay, as they are at each of its steps."""

from typing import Final

from api.access.callers import Callers
from api.replay.order import ReplayOrder
from api.replay.targets import ReplayError
from mqlake.records.access import Role

_ROLE: Final[Role] = "editor"


def check_rights(callers: Callers, order: ReplayOrder) -> None:
    """Accept one more step of a replay.

    Raises:
        ReplayError: Its caller could not begin it any more.
        OperationalError: The keys and accounts have not been read yet.
    """
    why = _why_not(callers, order)
    if why is not None:
        raise ReplayError(f"the replay was begun by {order.username}, who {why}")


def _why_not(callers: Callers, order: ReplayOrder) -> str | None:
    caller = callers.named(order.username)
    if caller is None:
        return "may not use the API any more"
    if not caller.may(_ROLE):
        return f"is {caller.role} now, and a replay needs the role {_ROLE}"
    if not caller.is_of(order.tenant):
        return f"is not for the tenant {order.tenant} any more"
    if caller.topic_filters is None:
        return None
    if order.topic_filters is None:
        return "is for some topics alone now"
    lost = [one for one in order.topic_filters if not caller.may_have(one)]
    return f"has no right to {lost[0]!r} any more" if lost else None
