"""State of the resource at a path, as it is shown to callers who may not see secrets."""

from collections.abc import Callable, Mapping, Set
from dataclasses import asdict
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from api.wiring.kept import Resource
from api.wiring.resources import RESOURCES
from api.wiring.services import Services
from mqlake.errors import MqlakeError
from mqlake.tables.retention import read_policies

Reader = Callable[[Services, Mapping[str, str], str], Any]
"""From services, parameters of the path and tenant to JSON; None: nothing is there."""


def state_at(path: str, services: Services, parameters: Mapping[str, str], tenant: str) -> Any:
    """Return the state of the resource at a path.

    Args:
        path: Path of the operation, below the prefix: `/rules/{id}`.
        services: Parts that know the state.
        parameters: Parameters of the path.
        tenant: Owner of the thing.
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


def check_states(changed: Set[str]) -> None:
    """Check that it is said what the state at each path is, or that there is none.

    Args:
        changed: Paths of audited operations.

    Raises:
        TypeError: It is missing for a path with parameters, or given for a path that does not
            exist.
    """
    said = {*_READERS, *_NO_STATE}
    if unsaid := {path for path in changed if "{" in path} - said:
        raise TypeError(
            f"no resource in api/wiring/resources.py says the state at {sorted(unsaid)}"
        )
    if gone := said - changed:
        raise TypeError(f"a state is said of {sorted(gone)}, where no route changes anything")


def _retention(services: Services) -> Any:
    return [asdict(one) for one in read_policies(services.settings.data_dir)]


def _of(resource: Resource[Any, Any], path: str) -> Reader:
    read = resource.states[path]
    return lambda services, *place: read(services.kept[resource].view, *place)


_READERS: Final[Mapping[str, Reader]] = {
    **{path: _of(resource, path) for resource in RESOURCES for path in resource.states},
    "/retention": lambda services, *_: _retention(services),
}
_NO_STATE: Final = {
    "/balancer/nodes/{name}/drain",
    "/gateways/{name}/drain",
    "/gateways/{name}/reload",
    "/clients/{client_id}",
    "/retained/{topic}",
    "/alarms/{id}/acknowledge",
    "/jobs/{id}",
    "/jobs/{id}/resume",
    "/rules/{id}/backfill",
    "/rules/{id}/dry_run",
    "/rules/{id}/dead_letters/rerun",
    "/rules/{id}/metrics/reset",
    "/rules/{id}/resume",
}
"""Paths where something is asked for that is no definition."""
