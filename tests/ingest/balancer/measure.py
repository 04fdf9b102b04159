"""Measurements of the balancer, run by hand.

    .runtime/venv/bin/python -m tests.ingest.balancer.measure connect
    .runtime/venv/bin/python -m tests.ingest.balancer.measure idle

`connect`: how much longer a CONNECT takes through HAProxy with `predicted` than directly, in pairs.
`idle`: processor time of a control plane with 100 nodes.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import psutil

from ingest.protocol.encoder import encode
from ingest.protocol.packets import Connect
from mqlake.control_socket import ask_balancer
from tests.ingest.balancer.harness import (
    Haproxy,
    brokers,
    cut_connections,
    listed,
    quick_settings,
    running_plane,
    stopping,
    until,
)
from tests.ingest.balancer.metrics_page import MetricsPage
from tests.ingest.gateway.harness import free_port

PAIRS = 3_000
NODES = 100
SECONDS = 30


def tell(line: str) -> None:
    sys.stdout.write(f"{line}, load average {os.getloadavg()[0]:.1f}\n")
    sys.stdout.flush()


async def connect_once(port: int, client_id: str) -> float:
    """Return the milliseconds from the TCP connection's beginning to CONNACK."""
    began_at = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode(Connect(client_id, 4), 4))
    await reader.readexactly(4)
    took = (time.perf_counter() - began_at) * 1000
    writer.close()
    return took


async def measure_connect(folder: Path) -> None:
    port = free_port()
    proxy = Haproxy("haproxy", folder)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(brokers("mosquitto", folder))
        settings = quick_settings(
            folder,
            [proxy],
            strategy="predicted",
            nodes=listed(*found),
            probe={"every_seconds": 5.0},
            weights={"scrape_seconds": 5.0},
            repair_seconds=2.0,
            frontends=[{"name": "mqtt", "bind": f"127.0.0.1:{port}"}],
        )
        proxy.write(settings)
        stack.enter_context(stopping(proxy))
        await proxy.start()
        system = await stack.enter_async_context(running_plane(settings))
        await system.takes(*(broker.name for broker in found))
        direct: list[float] = []
        through: list[float] = []
        for number in range(PAIRS):
            ways = [(direct, found[number % 3].port), (through, port)]
            for results, to in ways if number % 2 else reversed(ways):
                results.append(await connect_once(to, f"client-{number}"))
        for name, results in (("direct", direct), ("through HAProxy", through)):
            cuts = statistics.quantiles(results, n=100)
            tell(f"{name}: p50 {cuts[49]:.3f} ms, p99 {cuts[98]:.3f} ms")
        added = [late - soon for late, soon in zip(through, direct, strict=True)]
        tell(f"added: p50 of {PAIRS} pairs {statistics.median(added):.3f} ms")


async def measure_idle(folder: Path) -> None:
    async with brokers("mosquitto", folder) as found, MetricsPage().served() as page:
        page.text = "".join(f'a_metric{{label="{one}"}} {one}\n' for one in range(300))
        page.text += "process_cpu_seconds_total 5\nmqlake_gateway_overload_level 1\n"
        tables = "".join(
            f'[[nodes]]\nname = "node-{number}"\nhost = "127.0.0.1"\n'
            f"port = {found[number % 3].port}\n"
            f'metrics_url = "{page.url}"\n'
            for number in range(NODES)
        )
        config = folder / "balancer.toml"
        config.write_text(
            f'slots = {NODES}\nstate_file = "{folder}/state.json"\n'
            f'control_socket = "{folder}/control.sock"\n{tables}'
        )
        words = [sys.executable, "-P", "-m", "mqlake", "balancer", "--config", str(config)]
        process = subprocess.Popen(words)  # noqa: ASYNC220 - nothing else happens
        try:
            running = psutil.Process(process.pid)
            await until((folder / "control.sock").exists)
            await asyncio.sleep(10)
            before = running.cpu_times()
            await asyncio.sleep(SECONDS)
            after = running.cpu_times()
            told = await asyncio.to_thread(ask_balancer, folder / "control.sock", action="status")
            assert sum(node["takes_clients"] for node in told["nodes"]) == NODES
        finally:
            process.terminate()
            process.wait()
        used = after.user + after.system - before.user - before.system
        tell(f"{NODES} nodes, probed and scraped every 5 s: {used / SECONDS * 100:.2f} % of a core")


async def main(what: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        await {"connect": measure_connect, "idle": measure_idle}[what](Path(folder))
        await cut_connections()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
