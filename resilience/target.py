"""Interface of a target: parts that can be struck, and clients that reach them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from resilience.drivers.frames import FrameClient
from resilience.history import Writer
from resilience.machines.switch import CLIENTS, Conditions

Hold = Callable[[Callable[[], None]], None]


class Network(Protocol):
    """The network between the clients and one part."""

    def reset(self) -> None:
        """Break all connections with RST."""

    def hold(self, *, held: bool) -> None:
        """Let nothing through, in neither direction, and close nothing."""

    def slow(self, bytes_per_second: int | None) -> None:
        """Let the clients read no faster; None ends it."""

    def delay(self, seconds: float) -> None:
        """Hold all bytes back for so long, both ways."""


class Machine(Protocol):
    """Machine of a part; parts may share it."""

    name: str

    def degrade(self, direction: str, conditions: Conditions, other: str = CLIENTS) -> None:
        """Change the conditions of packets between it and the clients, or another machine.

        The direction is "in" to it, "out" of it, or "both".
        """

    def fill_disk(self) -> None:
        """Leave no free block."""

    def set_clock(self, seconds: float) -> None:
        """Step the wall clock to `seconds` ahead of the right time, or behind it."""

    def empty_disk(self) -> None:
        """Give the room back that `fill_disk` took."""


class Target(Protocol):
    """A broker, or the double.

    Attributes:
        parts: Their names; clients connect to those in `nodes`.
        promises: Those that it makes; a checker whose promise is false is not blamed.
    """

    name: str
    parts: tuple[str, ...]
    nodes: tuple[str, ...]
    promises: Mapping[str, Any]

    def client(
        self,
        name: str,
        driver: str,
        history: Writer,
        *,
        on_lost: Callable[[], None],
        hold: Hold | None,
    ) -> FrameClient: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def kill(self, part: str) -> None:
        """End it at once (SIGKILL)."""

    async def terminate(self, part: str) -> None:
        """Ask it to end (SIGTERM), and wait until it has."""

    async def launch(self, part: str) -> None:
        """Start it again, and wait until it takes connections."""

    async def pause(self, part: str) -> None:
        """Let it stand still (SIGSTOP)."""

    async def resume(self, part: str) -> None: ...

    async def freeze(self, part: str) -> None:
        """Let all processes of its machine stand still, and their monotonic clocks with them."""

    async def thaw(self, part: str) -> None: ...

    def network(self, part: str) -> Network: ...

    def machine(self, part: str) -> Machine: ...

    async def lose_power(self, part: str) -> None:
        """Take the power from its machine: unsynced data is gone, and so are all parts on it."""

    async def crash(self, part: str) -> None:
        """End all processes of its machine at one moment (SIGKILL)."""

    async def start_machine(self, part: str) -> None:
        """Start all parts of its machine again, and wait until they take connections."""

    async def fill_files(self, part: str, seconds: float) -> None:
        """Let no file of it take a byte more, until it has ended by itself.

        Raises:
            TargetError: It goes on for longer than `seconds`.
        """

    async def fill_log(self, part: str) -> None:
        """Let its log be as large as it may be.

        Raises:
            TargetError: The target does not say how.
        """

    async def empty_log(self, part: str) -> None:
        """Give the room back that `fill_log` took."""

    async def expire(self, part: str) -> None:
        """Delete what waits for a part that is away, if the target keeps it for a time only."""

    async def start_second(self, part: str) -> None:
        """Start a second process of its name.

        Raises:
            TargetError: That one was not refused.
        """

    def closed_files(self, part: str) -> list[Path]:
        """Return the files of its log that are not written any more, oldest first.

        Raises:
            TargetError: It does not say where they are.
        """

    def rewrites(self, part: str) -> bool:
        """Tell whether its files are written again as long as it runs: closed once it has ended."""

    async def set_right(
        self, client_id: str, action: str, topic_filter: str, *, allowed: bool
    ) -> None: ...

    async def set_tenant(self, tenant: str, *, is_open: bool) -> None:
        """Let the clients of a tenant in, or cut them off and let none in."""

    def username(self, tenant: str, client_id: str) -> str | None:
        """Return the user name by which a client is of its tenant; None if it needs none."""
