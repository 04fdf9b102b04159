"""A network of the tool's own: machines are network namespaces, joined by a switch in user space.

Each machine has one TUN device, the clients have one in the namespace of the tool, and the switch
carries IP packets between them: the fate of a packet is decided here, by a seed, and not by
`tc netem`, which many kernels lack. TCP is the kernel's own, and sees packets that are lost, late
or in another order.
"""

import errno
import fcntl
import heapq
import itertools
import os
import random
import selectors
import shutil
import socket
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from resilience.errors import TargetError

CLIENTS: Final = "clients"
"""Namespace of the clients: that of the tool."""

MTU: Final = 1500
QUEUE_PACKETS: Final = 1000
"""Packets on their way to one machine; one more is dropped, as in netem."""

TUN: Final = Path("/dev/net/tun")
_NETWORK: Final = "198.18"
"""Set aside for tests of networks [RFC 2544]."""

_NAMESPACES: Final = Path("/run/netns")
"""Folder in which the program ip has their names [ip-netns(8)]."""

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_BATCH: Final = 64
"""Packets that are taken from a device in one go."""

_CAP_SYS_ADMIN: Final = 21


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of packets one way between the clients and a machine, or two machines.

    Attributes:
        loss: Share of packets that are dropped, 0 to 1; 1 is a partition.
        delay_seconds: How long each packet takes.
        reorder: Share of packets that take no delay, and so overtake.
        bytes_per_second: No more than that; 0 for no limit.
    """

    loss: float = 0.0
    delay_seconds: float = 0.0
    reorder: float = 0.0
    bytes_per_second: int = 0


CLEAR: Final = Conditions()


def missing() -> str:
    """Return why there can be no such network here; empty if there can."""
    if shutil.which("ip") is None:
        return "no program ip (Debian: apt install iproute2)"
    if not os.access(TUN, os.R_OK | os.W_OK):
        return f"{TUN} cannot be opened"
    return missing_privilege()


def missing_privilege() -> str:
    """Return why namespaces and file systems cannot be made here; empty if they can."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:") and int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1:
            return ""
    return "the capability CAP_SYS_ADMIN is missing: run as root"


class _Device:
    """One TUN device, by its file descriptor."""

    def __init__(self, name: str, machine: str) -> None:
        self.machine = machine
        self.descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        try:
            wish = struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI)
            fcntl.ioctl(self.descriptor, _TUNSETIFF, wish)
        except OSError:
            os.close(self.descriptor)
            raise


class Switch:
    """The network of one run, in a thread of its own: no client that blocks holds packets up.

    Args:
        machines: Their names; each gets a namespace and an address.
        rng: Decides which packets are lost or overtake.
    """

    def __init__(self, machines: tuple[str, ...], rng: random.Random) -> None:
        self._machines = machines
        self._rng = rng
        self._devices: dict[str, _Device] = {}
        self._namespaces: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._by_address: dict[bytes, _Device] = {}
        self._conditions: dict[tuple[str, str], Conditions] = {}
        self._free_at: dict[tuple[str, str], float] = {}
        self._late: list[tuple[float, int, _Device, bytes]] = []
        self._waiting: dict[str, int] = {}
        self._order = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._carry, name="switch", daemon=True)
        self.carried = 0
        self.dropped = 0

    def address(self, machine: str) -> str:
        return self._addresses[machine]

    def prefix(self, machine: str) -> list[str]:
        """Return the beginning of a command that is to run on a machine."""
        return ["ip", "netns", "exec", self._namespaces[machine]]

    def start(self) -> None:
        """Make the namespaces and devices, and begin to carry packets.

        Raises:
            TargetError: Something is missing here; all that was made is taken away again.
        """
        if reason := missing():
            raise TargetError(f"no network of packets: {reason}")
        names = [CLIENTS, *self._machines]
        try:
            subnet, clients = _claim()
            self._devices[CLIENTS] = clients
            for number, machine in enumerate(names, start=1):
                self._addresses[machine] = address = f"{_NETWORK}.{subnet}.{number}"
                if machine != CLIENTS:
                    self._join(machine, f"rsl{subnet}n{number}")
                self._set_up(machine, subnet)
                device = self._devices[machine]
                self._by_address[bytes(map(int, address.split(".")))] = device
                self._selector.register(device.descriptor, selectors.EVENT_READ, device)
            self._selector.register(self._woken, selectors.EVENT_READ)
        except (OSError, TargetError) as exc:
            self.stop()
            raise TargetError(f"no network of packets: {exc}") from exc
        self._thread.start()

    def _join(self, machine: str, name: str) -> None:
        if (_NAMESPACES / name).exists():
            _ip("netns", "del", name)  # the run that had this number before was killed
        _ip("netns", "add", name)
        self._namespaces[machine] = name
        self._devices[machine] = _Device(name, machine)
        _ip("link", "set", name, "netns", name)
        _ip("-n", name, "link", "set", "lo", "up")

    def _set_up(self, machine: str, subnet: int) -> None:
        inside = self._namespaces.get(machine)
        where = () if inside is None else ("-n", inside)
        name = f"rsl{subnet}" if inside is None else inside
        _ip(*where, "addr", "add", f"{self._addresses[machine]}/24", "dev", name)
        _ip(*where, "link", "set", name, "mtu", str(MTU), "up")

    def stop(self) -> None:
        """Take all away; the devices go with their descriptors.

        The clients' goes last: with it the number of this network is free for another run.
        """
        self._wake.close()
        if self._thread.is_alive():
            self._thread.join()
        self._selector.close()
        self._woken.close()
        for name in self._namespaces.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        self._namespaces.clear()
        for device in reversed(self._devices.values()):
            os.close(device.descriptor)
        self._devices.clear()

    def change(self, source: str, destination: str, conditions: Conditions) -> None:
        """Set the conditions of packets from one machine to another from now on."""
        self._conditions[source, destination] = conditions

    def _carry(self) -> None:
        """Carry packets until the other end of `_woken` is closed."""
        while True:
            wait = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    return
                self._read(key.data)
            self._send_due()

    def _read(self, device: _Device) -> None:
        for _ in range(_BATCH):
            try:
                packet = os.read(device.descriptor, MTU + 64)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue  # neighbour discovery of IPv6
            to = self._by_address.get(packet[16:20])
            if to is not None:
                self._take(packet, device, to)

    def _take(self, packet: bytes, device: _Device, to: _Device) -> None:
        """Decide about a packet: now, later, never."""
        pair = (device.machine, to.machine)
        conditions = self._conditions.get(pair, CLEAR)
        if conditions == CLEAR:
            self._send(packet, to)
            return
        if conditions.loss and self._rng.random() < conditions.loss:
            self.dropped += 1
            return
        now = time.monotonic()
        due = sent_at = now
        if conditions.bytes_per_second:
            due = sent_at = max(now, self._free_at.get(pair, 0.0)) + (
                len(packet) / conditions.bytes_per_second
            )
        if not (conditions.reorder and self._rng.random() < conditions.reorder):
            due += conditions.delay_seconds
        if due <= now:
            self._send(packet, to)
        elif self._waiting.get(to.machine, 0) >= QUEUE_PACKETS:
            self.dropped += 1
        else:
            self._free_at[pair] = sent_at
            self._waiting[to.machine] = self._waiting.get(to.machine, 0) + 1
            heapq.heappush(self._late, (due, next(self._order), to, packet))

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            _, _, to, packet = heapq.heappop(self._late)
            self._waiting[to.machine] -= 1
            self._send(packet, to)

    def _send(self, packet: bytes, to: _Device) -> None:
        try:
            os.write(to.descriptor, packet)
        except OSError:
            self.dropped += 1  # its queue is full
        else:
            self.carried += 1


def _claim() -> tuple[int, _Device]:
    """Return a number that no other run on this machine has, and the clients' device of it."""
    for subnet in random.sample(range(256), 256):
        try:
            return subnet, _Device(f"rsl{subnet}", CLIENTS)
        except OSError as exc:
            if exc.errno != errno.EBUSY:
                raise
    raise TargetError("256 runs have a network already")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise TargetError(f"ip {' '.join(words)}: {done.stderr.strip()}")
