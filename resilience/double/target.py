"""The double as a target: the runner and the faults cannot tell it from a broker."""

import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from resilience.double.broker import Double
from resilience.drivers.client import MqttClient
from resilience.errors import TargetError
from resilience.history import Writer
from resilience.target import Hold


class DoubleNetwork:
    """Connections in memory; they can be cut, and not be slowed down."""

    def __init__(self, double: Double, node: str) -> None:
        self._double = double
        self._node = node

    def reset(self) -> None:
        self._double.cut(self._node)

    def hold(self, *, held: bool) -> None:
        if held:
            self._double.freeze(self._node)
        else:
            self._double.thaw(self._node)

    def slow(self, bytes_per_second: int | None) -> None:
        raise TargetError("the double has no slow connections")

    def delay(self, seconds: float) -> None:
        raise TargetError("the double has delays of its own")


class DoubleTarget:
    """See `target.Target`."""

    name = "double"

    def __init__(self, rng: random.Random, nodes: int = 1, defects: Iterable[str] = ()) -> None:
        self.nodes = self.parts = tuple(f"node-{number + 1}" for number in range(nodes))
        self.promises: Mapping[str, Any] = {"wills_survive_faults": True}
        self.double = Double(rng, self.nodes, defects)

    def client(
        self,
        name: str,
        driver: str,
        history: Writer,
        *,
        on_lost: Callable[[], None],
        hold: Hold | None,
    ) -> MqttClient:
        return MqttClient(name, history, self.double, on_lost=on_lost, hold=hold)

    async def start(self) -> None:
        """It is there."""

    async def stop(self) -> None:
        """It goes with the run."""

    async def kill(self, part: str) -> None:
        self.double.crash(part)

    async def terminate(self, part: str) -> None:
        self.double.crash(part)

    async def launch(self, part: str) -> None:
        self.double.recover(part)

    async def pause(self, part: str) -> None:
        self.double.freeze(part)

    async def resume(self, part: str) -> None:
        self.double.thaw(part)

    async def freeze(self, part: str) -> None:
        self.double.freeze(part)

    async def thaw(self, part: str) -> None:
        self.double.wake(part)

    def network(self, part: str) -> DoubleNetwork:
        return DoubleNetwork(self.double, part)

    def machine(self, part: str) -> NoReturn:
        raise TargetError(f"{part} of the double is on no machine")

    async def lose_power(self, part: str) -> None:
        self.machine(part)

    async def crash(self, part: str) -> None:
        for node in self.nodes:
            self.double.crash(node)

    async def start_machine(self, part: str) -> None:
        for node in self.nodes:
            self.double.recover(node)

    async def fill_files(self, part: str, seconds: float) -> None:
        self.closed_files(part)

    async def fill_log(self, part: str) -> None:
        self.double.is_full = True

    async def empty_log(self, part: str) -> None:
        self.double.is_full = False

    async def expire(self, part: str) -> None:
        self.double.expire(part)

    async def start_second(self, part: str) -> None:
        raise TargetError(f"{part} of the double is no process")

    def closed_files(self, part: str) -> list[Path]:
        raise TargetError(f"{part} of the double has no files")

    def rewrites(self, part: str) -> bool:
        return False

    async def set_right(
        self, client_id: str, action: str, topic_filter: str, *, allowed: bool
    ) -> None:
        self.double.set_right(client_id, action, topic_filter, allowed=allowed)

    async def set_tenant(self, tenant: str, *, is_open: bool) -> None:
        self.double.set_tenant(tenant, is_open=is_open)

    def username(self, tenant: str, client_id: str) -> str | None:
        return None
