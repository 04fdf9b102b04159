"""Faults: one small file each, registered by name.

A fault is a coroutine `(target, part, **args)` that returns when the fault is over and the part is
back. A new one is a file in this folder; the schedule, the scenarios and `list` know it at once.
"""

import importlib
import pkgutil
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from resilience.errors import ScenarioError
from resilience.target import Target

Strikes = Callable[..., Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault as it is registered.

    Attributes:
        draw: Makes arguments by chance, for random schedules.
        needs: One of `machines.machine.NEEDS`; empty if a process is all that it strikes.
        spoils: Whether a part has less, or something else, for ever: no other run can use it.
    """

    name: str
    text: str
    strike: Strikes
    draw: Callable[[random.Random], dict[str, Any]]
    needs: str
    spoils: bool


FAULTS: Final[dict[str, Fault]] = {}


def _nothing(_rng: random.Random) -> dict[str, Any]:
    return {}


def register(
    name: str,
    *,
    draw: Callable[[random.Random], dict[str, Any]] = _nothing,
    needs: str = "",
    spoils: bool = False,
) -> Callable[[Strikes], Strikes]:
    """Register the coroutine under a name; the first line of its docstring describes it."""

    def add(strike: Strikes) -> Strikes:
        text = (strike.__doc__ or "").partition("\n")[0]
        FAULTS[name] = Fault(name, text, strike, draw, needs, spoils)
        return strike

    return add


async def strike(target: Target, name: str, part: str, args: dict[str, Any]) -> None:
    """Let a fault happen, from its start until its end.

    Raises:
        ScenarioError: No such fault, part or argument.
        TargetError: The target could not do it.
    """
    if name not in FAULTS:
        raise ScenarioError(f"no fault {name!r}; there are {', '.join(sorted(FAULTS))}")
    if part not in target.parts:
        raise ScenarioError(f"{target.name} has no part {part!r}, but {', '.join(target.parts)}")
    await FAULTS[name].strike(target, part, **args)


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
