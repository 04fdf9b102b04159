"""One machine of a target: its network, its disk, its power, each only if a run needs it."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from resilience.errors import TargetError
from resilience.machines import clock, group, switch, volume
from resilience.machines.boot import Boot
from resilience.machines.clock import MachineClock
from resilience.machines.group import ProcessGroup
from resilience.machines.switch import CLIENTS, Conditions, Switch
from resilience.machines.volume import Volume

PROXY: Final = "proxy"
PACKETS: Final = "packets"
DISK: Final = "disk"
CLOCK: Final = "clock"
NEEDS: Final = (PROXY, PACKETS, DISK, CLOCK)
"""Needs of faults: a proxy before the part, a network of packets, a disk that can fail, a
clock that can be set and stand still."""

DIRECTIONS: Final[dict[str, tuple[bool, bool]]] = {
    "both": (True, True),
    "in": (True, False),
    "out": (False, True),
}
"""Per name of a direction: whether it means packets to the machine, and from it."""

LOOPBACK: Final = "127.0.0.1"


def missing(needs: Iterable[str]) -> str:
    """Return why this machine cannot meet the needs; empty if it can."""
    reasons = []
    for need in needs:
        if need == PACKETS:
            reasons.append(switch.missing())
        elif need == DISK:
            reasons += [volume.missing(), group.missing()]
        elif need == CLOCK:
            reasons.append(clock.missing())
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


class LocalMachine:
    """Parts of a target that share an address, a disk and their power.

    Args:
        folder: For the disk and its image.
        network: None if packets are left alone.
        has_disk: Whether the disk is one that can fail; otherwise it is a plain folder.
        has_clock: Whether it has a clock of its own.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        network: Switch | None,
        *,
        disk_mebibytes: int,
        has_disk: bool,
        has_clock: bool = False,
    ) -> None:
        self.name = name
        self.disk = folder / f"disk-{name}"
        self._network = network
        self._volume: Volume | None = None
        self._group: ProcessGroup | None = None
        self._boot: Boot | None = None
        self._clock = MachineClock(folder / f"clock-{name}") if has_clock else None
        if has_disk:
            self._volume = Volume(folder / f"disk-{name}.image", self.disk, disk_mebibytes)
            self._group = ProcessGroup(folder.name + "-" + name)
            self._boot = Boot(folder / f"boot-{name}")

    @property
    def host(self) -> str:
        """Its address."""
        return LOOPBACK if self._network is None else self._network.address(self.name)

    def start(self) -> None:
        self.disk.mkdir()
        if self._volume is not None and self._group is not None and self._boot is not None:
            self._volume.start()
            self._group.start()
            self._boot.begin()
        if self._clock is not None:
            self._clock.start()

    def stop(self) -> None:
        if self._group is not None:
            self._group.stop()
        if self._volume is not None:
            self._volume.stop()

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs another one on this machine."""
        group_words = [] if self._group is None else self._group.prefix()
        network_words = [] if self._network is None else self._network.prefix(self.name)
        clock_words = [] if self._clock is None else self._clock.prefix()
        boot_words = [] if self._boot is None else self._boot.prefix()
        return [*group_words, *network_words, *boot_words, *clock_words, *words]

    def set_clock(self, seconds: float) -> None:
        """Step its wall clock to `seconds` ahead, or behind.

        Raises:
            TargetError: It has no clock of its own in this run.
        """
        if self._clock is None:
            raise TargetError(f"{self.name} has no clock that can be set in this run")
        self._clock.set(seconds)

    def hold_clock(self, seconds: float) -> None:
        """Take `seconds` off its monotonic clocks, while all its processes are stopped.

        Raises:
            TargetError: It has no clock of its own in this run.
        """
        if self._clock is None:
            raise TargetError(f"{self.name} has no clock that can stand still in this run")
        self._clock.hold(seconds)

    def degrade(self, direction: str, conditions: Conditions, other: str = CLIENTS) -> None:
        """Change the conditions of packets between it and the clients, or another machine.

        Raises:
            TargetError: No such direction, or no network of packets in this run.
        """
        if self._network is None:
            raise TargetError(f"{self.name} has no network of packets in this run")
        if direction not in DIRECTIONS:
            raise TargetError(f"no direction {direction!r}; there are {', '.join(DIRECTIONS)}")
        to_machine, from_machine = DIRECTIONS[direction]
        if to_machine:
            self._network.change(other, self.name, conditions)
        if from_machine:
            self._network.change(self.name, other, conditions)

    async def lose_power(self) -> None:
        """End all its processes, with all that they wrote and did not sync; mount its disk again.

        No process answers any more when the disk stops: acknowledgements are from before.
        """
        kept, powered, boot = self._with_disk()
        powered.freeze()
        kept.cut()
        powered.kill()
        await asyncio.to_thread(kept.unmount)
        await asyncio.to_thread(kept.mount)
        boot.begin()

    @property
    def has_disk(self) -> bool:
        """Tell whether its disk is one that can fail."""
        return self._volume is not None

    def fill_disk(self) -> None:
        self._with_disk()[0].fill()

    def empty_disk(self) -> None:
        self._with_disk()[0].empty()

    def _with_disk(self) -> tuple[Volume, ProcessGroup, Boot]:
        if self._volume is None or self._group is None or self._boot is None:
            raise TargetError(f"{self.name} has no disk that can fail in this run")
        return self._volume, self._group, self._boot
