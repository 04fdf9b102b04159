"""What the tool does to packets and disks is what its faults promise; on the real kernel."""

import asyncio
import errno
import itertools
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from resilience.definition import load
from resilience.errors import TargetError
from resilience.faults import strike
from resilience.local import LocalTarget
from resilience.machines.clock import COMPILER
from resilience.machines.machine import CLOCK, DISK, PACKETS, LocalMachine, missing
from resilience.machines.switch import CLEAR, CLIENTS, Conditions, Switch
from resilience.machines.volume import Volume
from tests.pace import within
from tests.waiting import until

pytestmark = pytest.mark.programs

PATIENCE = 120.0
"""Of what passes through a switch, which is a process beside all that a machine does."""
SENT_AGAIN = 4
"""Packets dropped: an acknowledgement, an answer, and the answer twice again."""

with_packets = pytest.mark.skipif(bool(missing([PACKETS])), reason=missing([PACKETS]) or "-")
with_disk = pytest.mark.skipif(bool(missing([DISK])), reason=missing([DISK]) or "-")

ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 7))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
"""

DATAGRAMS = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(int(sys.argv[2])):
    sender.sendto(number.to_bytes(2), (sys.argv[1], int(sys.argv[3])))
"""

ABANDONED = """
import random, signal
from resilience.machines.switch import Switch
switch = Switch(("a",), random.Random(1))
switch.start()
print(switch.prefix("a")[-1], flush=True)
signal.pause()
"""

CLOCKS = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""

WRITER = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
with (folder / "synced").open("wb") as file:
    file.write(b"kept" * 1000)
    file.flush()
    os.fsync(file.fileno())
(folder / "written").write_bytes(b"gone" * 1000)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def echo_behind(switch: Switch) -> Iterator[None]:
    switch.start()
    try:
        command = [*switch.prefix("a"), sys.executable, "-c", ECHO, switch.address("a")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            try:
                yield
            finally:
                server.kill()
    finally:
        switch.stop()


def connected(switch: Switch) -> socket.socket:
    return socket.create_connection((switch.address("a"), 7), PATIENCE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # Its name is that of control groups, so it has to be one of its own.
    place = tmp_path / f"machines-{random.randrange(10**9)}"
    place.mkdir()
    return place


def test_what_is_missing_here_is_said(tmp_path: Path) -> None:
    machine = LocalMachine("a", tmp_path, None, disk_mebibytes=1, has_disk=False)
    machine.start()
    assert machine.disk.is_dir()
    assert machine.host == "127.0.0.1"
    assert machine.command(["true"]) == ["true"]
    with pytest.raises(TargetError, match="no disk that can fail"):
        machine.fill_disk()
    with pytest.raises(TargetError, match="no clock that can be set"):
        machine.set_clock(1.0)
    with pytest.raises(TargetError, match="no network of packets"):
        machine.degrade("both", CLEAR)


def test_without_privileges_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"status": "CapEff:\t0000000000000000\n", "mounts": ""}
    monkeypatch.setattr(Path, "read_text", lambda path, **_: files[path.name])
    monkeypatch.setattr("shutil.which", lambda program, **_: program)
    assert "run as root" in missing([PACKETS, DISK])
    assert missing([]) == ""


@with_packets
@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(),
        Conditions(loss=0.2),
        Conditions(delay_seconds=0.005, reorder=0.3),
        Conditions(bytes_per_second=200_000),
    ],
    ids=["clear", "loss", "reorder", "bandwidth"],
)
def test_tcp_comes_whole_through_every_kind_of_network(conditions: Conditions) -> None:
    switch = Switch(("a",), random.Random(1))
    with echo_behind(switch), connected(switch) as client:
        for pair in ((CLIENTS, "a"), ("a", CLIENTS)):
            switch.change(*pair, conditions)
        data = random.Random(2).randbytes(50_000)
        start = time.monotonic()
        client.settimeout(PATIENCE)
        client.sendall(data)
        with client.makefile("rb") as stream:
            assert stream.read(len(data)) == data
        if conditions.bytes_per_second:
            # Both ways at once.
            assert time.monotonic() - start >= len(data) / conditions.bytes_per_second
        assert bool(switch.dropped) == bool(conditions.loss)


@with_packets
def test_a_partition_is_one_way_and_ends() -> None:
    switch = Switch(("a",), random.Random(1))
    with echo_behind(switch), connected(switch) as client:
        switch.change("a", CLIENTS, Conditions(loss=1.0))
        carried = switch.carried
        client.sendall(b"x")
        # The answer is sent again.
        asyncio.run(until(lambda: switch.dropped >= SENT_AGAIN, within(60)))
        assert switch.carried > carried  # it has got there
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        switch.change("a", CLIENTS, CLEAR)
        client.settimeout(PATIENCE)
        assert client.recv(1) == b"x"


APART = f"""
[target]
title = "parts that ask each other"

[parts.server]
command = ["{{python}}", "-c", '''{ECHO}''', "{{host:one}}"]
machine = "one"

[parts.near]
command = ["/bin/sleep", "600"]
machine = "one"

[parts.far]
command = ["/bin/sleep", "600"]
machine = "two"
"""


@with_packets
def test_parts_are_cut_from_each_other_and_from_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "apart.toml").write_text(APART)
    target = LocalTarget(load(str(tmp_path / "apart.toml")), needs={PACKETS})

    async def main() -> None:
        await target.start()
        ask = "import socket, sys; socket.create_connection((sys.argv[1], 7), 1)"

        async def reaches(words: list[str]) -> bool:
            process = await asyncio.create_subprocess_exec(
                *words,
                sys.executable,
                "-c",
                ask,
                target.machine("server").host,
                stderr=asyncio.subprocess.DEVNULL,
            )
            return not await process.wait()

        async def gets_there(words: list[str]) -> None:
            await until(lambda: reaches(words), PATIENCE)

        try:
            far = target.machine("far").command([])
            await gets_there(far)  # it listens
            with pytest.raises(TargetError, match="server is on one machine"):
                await strike(target, "partition", "server", {"peers": ["near"]})
            for way in ("in", "out"):
                args = {"peers": ["far"], "way": way, "seconds": 60.0}
                fault = asyncio.create_task(strike(target, "partition", "server", args))
                await asyncio.sleep(0)
                assert not await reaches(far)
                await gets_there([])
                fault.cancel()
                await asyncio.gather(fault, return_exceptions=True)
                await gets_there(far)
        finally:
            await target.stop()

    asyncio.run(main())


@with_packets
def test_packets_overtake_each_other_and_none_is_lost() -> None:
    count = 200
    switch = Switch(("a",), random.Random(1))
    switch.start()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
            switch.change("a", CLIENTS, Conditions(delay_seconds=0.05, reorder=0.3))
            receiver.bind((switch.address(CLIENTS), 0))
            receiver.settimeout(PATIENCE)
            words = [switch.address(CLIENTS), str(count), str(receiver.getsockname()[1])]
            subprocess.run(
                [*switch.prefix("a"), sys.executable, "-c", DATAGRAMS, *words], check=True
            )
            came = [int.from_bytes(receiver.recv(16)) for _ in range(count)]
    finally:
        switch.stop()
    assert sorted(came) == list(range(count))
    assert came != sorted(came)


@with_packets
def test_nothing_is_left_of_a_network() -> None:
    switch = Switch(("a", "b"), random.Random(1))
    switch.start()
    name = switch.prefix("b")[-1]
    assert name in subprocess.check_output(["ip", "netns"], text=True)
    switch.stop()
    assert name not in subprocess.check_output(["ip", "netns"], text=True).split()
    assert name[:-2] + ":" not in subprocess.check_output(["ip", "link"], text=True).split()


@with_packets
def test_namespaces_that_a_killed_run_left_are_in_nobodys_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [sys.executable, "-c", ABANDONED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        name = run.stdout.readline().strip()
        run.kill()
    assert name in subprocess.check_output(["ip", "netns"], text=True)
    number = int(name.removeprefix("rsl").removesuffix("n2"))
    monkeypatch.setattr(random, "sample", lambda *_: [number])
    switch = Switch(("a",), random.Random(1))
    with echo_behind(switch), connected(switch):
        assert switch.prefix("a")[-1] == name
    assert name not in subprocess.check_output(["ip", "netns"], text=True).split()


@with_disk
def test_power_loss_takes_what_was_not_synced_and_keeps_the_rest(folder: Path) -> None:
    machine = LocalMachine("a", folder, None, disk_mebibytes=32, has_disk=True)
    machine.start()
    try:
        command = machine.command([sys.executable, "-c", WRITER, str(machine.disk)])
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert (machine.disk / "written").read_bytes() == b"gone" * 1000
        asyncio.run(machine.lose_power())
        process.communicate()
        assert process.returncode == -9
        assert (machine.disk / "synced").read_bytes() == b"kept" * 1000
        written = machine.disk / "written"
        assert not written.exists() or written.read_bytes() == b""
        # It goes on with what is there.
        (machine.disk / "new").write_bytes(b"new")
    finally:
        machine.stop()
    assert not (machine.disk / "synced").exists()


@with_disk
def test_after_a_power_loss_programs_see_another_boot(folder: Path) -> None:
    machine = LocalMachine("a", folder, None, disk_mebibytes=16, has_disk=True)
    machine.start()
    try:
        ask = machine.command(["cat", "/proc/sys/kernel/random/boot_id"])
        before = subprocess.check_output(ask, text=True)
        assert subprocess.check_output(ask, text=True) == before
        asyncio.run(machine.lose_power())
        after = subprocess.check_output(ask, text=True)
        assert len({before, after, subprocess.check_output(ask[-2:], text=True)}) == 3
    finally:
        machine.stop()


@with_disk
def test_a_disk_comes_back_though_others_have_made_namespaces_meanwhile(folder: Path) -> None:
    """As `ip netns exec` does: what held it gave it back as the power loss had left it."""
    disk = Volume(folder / "image", folder / "disk", 16)
    disk.start()
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo ready; read x"]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            disk.cut()
            disk.unmount()
            disk.mount()
            (disk.mount_point / "written").write_bytes(b"x")
            assert other.stdin is not None
            other.stdin.close()
    finally:
        disk.stop()


@with_disk
def test_a_full_disk_takes_nothing_until_it_is_emptied(folder: Path) -> None:
    volume = Volume(folder / "image", folder / "disk", 16)
    volume.start()
    try:
        volume.fill()
        with pytest.raises(OSError, match="No space") as found:
            (folder / "disk" / "more").write_bytes(b"x" * 100_000)
        assert found.value.errno == errno.ENOSPC
        volume.empty()
        (folder / "disk" / "more").write_bytes(b"x" * 100_000)
    finally:
        volume.stop()


@pytest.mark.skipif(bool(missing([CLOCK])), reason=missing([CLOCK]) or "-")
def test_a_clock_steps_for_those_on_the_machine_alone(folder: Path) -> None:
    machine = LocalMachine("a", folder, None, disk_mebibytes=1, has_disk=False, has_clock=True)
    machine.start()
    command = machine.command([sys.executable, "-c", CLOCKS])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for seconds in (0.0, 3600.0, -3600.0, 0.0):
            machine.set_clock(seconds)
            process.stdin.write("tell\n")
            wall, steady = map(float, process.stdout.readline().split())
            assert abs(wall - time.time() - seconds) < 60
            assert abs(steady - time.monotonic()) < 60
        process.stdin.close()


@pytest.mark.skipif(bool(missing([CLOCK])), reason=missing([CLOCK]) or "-")
def test_a_sleep_takes_as_long_as_it_does_without_such_a_clock(folder: Path) -> None:
    """By libfaketime alone `time.sleep` fails: it sleeps until a time of the monotonic clock."""
    machine = LocalMachine("a", folder, None, disk_mebibytes=1, has_disk=False, has_clock=True)
    machine.start()
    machine.set_clock(-3600.0)
    code = "import time; a = time.monotonic(); time.sleep(0.01); print(time.monotonic() - a)"
    done = subprocess.run(
        machine.command([sys.executable, "-c", code]), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert 0.01 <= float(done.stdout) < 60


WAIT = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>

int main(void)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_condattr_t steady;
    pthread_cond_t never;
    struct timespec begin, until, end;
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&never, &steady);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    until = begin;
    until.tv_sec += 1;
    pthread_mutex_lock(&mutex);
    while (!pthread_cond_timedwait(&never, &mutex, &until))
        ;
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%f\\n", end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9);
}
"""


@pytest.mark.skipif(bool(missing([CLOCK])), reason=missing([CLOCK]) or "-")
def test_a_wait_for_another_thread_takes_as_long_as_it_does_without_such_a_clock(
    folder: Path,
) -> None:
    """As Java waits: it ended at once, and Kafka turned in circles until it was given up."""
    (folder / "wait.c").write_text(WAIT)
    subprocess.run(
        [COMPILER, "-o", folder / "wait", folder / "wait.c", "-lpthread"], check=True, timeout=60
    )
    machine = LocalMachine("a", folder, None, disk_mebibytes=1, has_disk=False, has_clock=True)
    machine.start()
    machine.set_clock(-3600.0)
    done = subprocess.run(
        machine.command([str(folder / "wait")]), capture_output=True, text=True, check=True
    )
    assert 1 <= float(done.stdout) < 60


STEADY = """
[target]
title = "a part that tells its clocks"
status = "works"

[parts.teller]
command = ["{python}", "-u", "-c", '''
import time
while True:
    time.sleep(0.005)
    print(time.time(), time.monotonic(), flush=True)
''']
"""


@pytest.mark.skipif(bool(missing([CLOCK])), reason=missing([CLOCK]) or "-")
def test_a_frozen_machine_goes_on_as_if_no_time_had_passed(tmp_path: Path) -> None:
    """Its monotonic clock goes on where it was, its wall clock is right again at once."""
    (tmp_path / "steady.toml").write_text(STEADY)

    async def main() -> list[tuple[float, float]]:
        target = LocalTarget(load(str(tmp_path / "steady.toml")), needs=[CLOCK])
        await target.start()
        try:
            told = target.folder / "teller.log"

            async def lines(least: int) -> None:
                await until(lambda: told.read_text().count("\n") >= least)

            await lines(5)
            await strike(target, "freeze", "teller", {"seconds": 2.0})
            await lines(told.read_text().count("\n") + 5)
            return [
                (float(wall), float(steady))
                for wall, steady in map(str.split, told.read_text().splitlines()[:-1])
            ]
        finally:
            await target.stop()

    told = asyncio.run(main())
    steps = [
        (later[0] - former[0], later[1] - former[1]) for former, later in itertools.pairwise(told)
    ]
    wall, steady = max(steps)
    assert wall >= 2.0
    assert wall - steady >= 1.9
    assert all(step >= 0 for _, step in steps)


@pytest.mark.skipif(bool(missing([CLOCK])), reason=missing([CLOCK]) or "-")
def test_a_wait_until_a_time_takes_as_long_after_a_freeze(folder: Path) -> None:
    """As Java and Python wait: told to the kernel in its own time, else it ends at once."""
    (folder / "wait.c").write_text(WAIT)
    subprocess.run(
        [COMPILER, "-o", folder / "wait", folder / "wait.c", "-lpthread"], check=True, timeout=60
    )
    machine = LocalMachine("a", folder, None, disk_mebibytes=1, has_disk=False, has_clock=True)
    machine.start()
    machine.hold_clock(3600.0)
    code = (
        "import threading, time; lock = threading.Lock(); lock.acquire(); a = time.monotonic(); "
        "lock.acquire(timeout=1); time.sleep(0.5); print(time.monotonic() - a)"
    )
    for words in ([str(folder / "wait")], [sys.executable, "-c", code]):
        done = subprocess.run(machine.command(words), capture_output=True, text=True, check=True)
        assert 1 <= float(done.stdout) < 60


LOG = """
[target]
title = "a log in files"

[parts.log]
command = ["/bin/sleep", "600"]
segments = "{dir}/*/*.log"
"""


def struck(tmp_path: Path, fault: str, **args: float) -> tuple[list[bytes], list[bytes]]:
    """Return the closed files before and after, and see that the ones being written are left."""
    (tmp_path / "log.toml").write_text(LOG)
    target = LocalTarget(load(str(tmp_path / "log.toml")))

    async def main() -> tuple[list[bytes], list[bytes]]:
        await target.start()
        try:
            with pytest.raises(TargetError, match="no closed file yet"):
                await strike(target, fault, "log", args)
            for name in ("a/1", "a/2", "a/3", "b/1"):
                path = target.folder / f"{name}.log"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(bytes(1_000))
            files = target.closed_files("log")
            assert sorted(path.name for path in files) == ["1.log", "2.log"]
            before = [path.read_bytes() for path in files]
            await strike(target, fault, "log", args)
            for name in ("a/3", "b/1"):
                assert (target.folder / f"{name}.log").read_bytes() == bytes(1_000)
            return before, [path.read_bytes() for path in files]
        finally:
            await target.stop()

    return asyncio.run(main())


@pytest.mark.parametrize("place", [0.0, 0.3, 0.999999])
def test_one_bit_of_a_closed_file_is_another(tmp_path: Path, place: float) -> None:
    before, after = struck(tmp_path, "bit-flip", place=place)
    changed = [
        (one ^ other).bit_count()
        for file, new in zip(before, after, strict=True)
        for one, other in zip(file, new, strict=True)
        if one != other
    ]
    assert changed == [1]


def test_the_bit_is_one_of_a_message(tmp_path: Path) -> None:
    (tmp_path / "log.toml").write_text(LOG)
    target = LocalTarget(load(str(tmp_path / "log.toml")))
    other, message = b"other/1|" + bytes(5_000), b"pub/1|" + bytes(5_000)

    async def main() -> None:
        await target.start()
        try:
            files = [target.folder / f"a/{number}.log" for number in (1, 2, 3)]
            files[0].parent.mkdir()
            for file, data in zip(files, (other + message, other, message), strict=True):
                file.write_bytes(data)
            await strike(target, "bit-flip", "log", {"of": "pub", "place": 0.9})
            (at,) = (
                at
                for at, (new, old) in enumerate(
                    zip(files[0].read_bytes(), other + message, strict=True)
                )
                if new != old
            )
            assert len(other) < at < len(other + message)
            assert [file.read_bytes() for file in files[1:]] == [other, message]
            with pytest.raises(TargetError, match="no closed file has a message of nobody"):
                await strike(target, "bit-flip", "log", {"of": "nobody"})
        finally:
            await target.stop()

    asyncio.run(main())


STORE = """
[target]
title = "all in one file"

[parts.broker]
command = ["/bin/sh", "-c", "cd {dir}; cp store new && mv new read; >up; exec sleep 600"]
store = "{dir}/store"
"""


@pytest.mark.parametrize("fault", ["bit-flip", "truncate"])
def test_a_file_that_is_written_anew_is_damaged_while_nobody_writes_it(
    tmp_path: Path, fault: str
) -> None:
    (tmp_path / "store.toml").write_text(STORE)
    target = LocalTarget(load(str(tmp_path / "store.toml")))

    async def main() -> None:
        await target.start()
        try:
            await until((target.folder / "up").exists)  # it has looked for a store, and found none
            (target.folder / "store").write_bytes(bytes(1_000))
            before = await target.pids()
            await strike(target, fault, "broker", {})
            assert not set(before) & set(await target.pids())
            read = target.folder / "read"
            await until(read.exists)
            assert read.read_bytes() != bytes(1_000)
        finally:
            await target.stop()

    asyncio.run(main())


def test_a_closed_file_loses_its_end(tmp_path: Path) -> None:
    before, after = struck(tmp_path, "truncate", share=0.25)
    assert sorted(map(len, after)) == [750, 1_000]
    assert len(before[0]) == 1_000


def test_a_target_without_a_log_in_files_says_so() -> None:
    target = LocalTarget(load("mqlake"))
    with pytest.raises(TargetError, match="does not say where the log of api is"):
        target.closed_files("api")
