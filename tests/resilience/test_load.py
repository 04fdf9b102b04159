"""What is measured of processes, and what is made of it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import psutil
import pytest

from resilience.command import main
from resilience.load import deliveries, summary
from resilience.usage import UsageSampler, taken_by, with_descendants

pytestmark = pytest.mark.programs

BUSY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
print(child.pid, flush=True)
sys.stdin.readline()
data = bytearray(64 * 1024 * 1024)
end = time.process_time() + 0.5
while time.process_time() < end:
    pass
print("done", flush=True)
sys.stdin.readline()
"""


def test_processes_are_looked_at_with_all_that_they_have_started() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child = int(process.stdout.readline())
        pids = with_descendants([process.pid])
        assert set(pids) == {process.pid, child}
        before = _processor_seconds(pids)
        sampler = asyncio.run(_watch(pids, process.stdin, process.stdout))
        used = _processor_seconds(pids) - before
    # What it is compared with counts ticks, of each process and mode.
    assert 0.5 <= sampler.cpu_seconds <= used + 2 * len(pids) / os.sysconf("SC_CLK_TCK")
    assert sampler.peak_bytes > 64 * 1024 * 1024
    assert sampler.peak_percent > 0
    assert sampler.samples[-1][1].files >= 6
    assert taken_by(pids[:1]).memory_bytes == 0


def _processor_seconds(pids: list[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)


async def _watch(pids: list[int], orders: IO[bytes], output: IO[bytes]) -> UsageSampler:
    async with UsageSampler(pids, seconds=0.05) as sampler:
        orders.write(b"go\n")
        orders.flush()
        assert await asyncio.to_thread(output.readline) == b"done\n"
    return sampler


def test_a_burst_shorter_than_an_interval_has_a_peak() -> None:
    begin = time.process_time()
    sampler = asyncio.run(_burst())
    used = time.process_time() - begin
    assert 0.005 < sampler.cpu_seconds <= used
    # No less than the mean, and no more than if all was used in the shortest interval.
    mean = 100 * sampler.cpu_seconds / sampler.seconds
    assert 0.99 * mean <= sampler.peak_percent <= 100 * used / 0.2


async def _burst() -> UsageSampler:
    async with UsageSampler([os.getpid()], seconds=0.2) as sampler:
        begin = time.process_time()
        while time.process_time() < begin + 0.005:
            pass
    return sampler


def test_a_subscriber_gets_each_message_of_its_topic() -> None:
    assert [deliveries(clients) for clients in (0, 4, 100, 1000)] == [0, 2, 1250, 125_000]


def test_the_summary_has_medians_spread_and_what_one_delivery_costs() -> None:
    def row(clients: int, cpu_seconds: float) -> dict[str, float]:
        row = {"clients": clients, "deliveries": deliveries(clients), "cpu_seconds": cpu_seconds}
        return row | {"cpu_percent": clients / 10, "memory_bytes": clients * 100, "seconds": 1.0}

    found = summary([row(100, 0.1), row(100, 0.3), row(100, 0.2), row(1000, 12.575), row(0, 0)])
    assert [size["clients"] for size in found["sizes"]] == [0, 100, 1000]
    assert found["sizes"][1]["cpu_seconds"] == 0.2
    assert found["sizes"][1]["cpu_seconds_spread"] == [0.1, 0.3]
    assert found["us_per_delivery"] == pytest.approx(100)


@pytest.mark.skipif(
    shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None, reason="no mosquitto here"
)
def test_a_broker_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["load", "--target", "mosquitto", "--quick", "--clients", "8", "--clients", "40"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "mosquitto" / "load" / "load.json").read_text())
    assert [row["deliveries"] for row in result["rows"]] == [8, 8, 200, 200]
    assert "one delivery takes" in capsys.readouterr().out
