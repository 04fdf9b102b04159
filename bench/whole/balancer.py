"""Cost of the balancer: a CONNECT through HAProxy, and a control plane with many nodes."""

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from bench.load.connector import run_cycles
from bench.results.figures import Figures, figure
from bench.systems.proxied import await_ready, control_plane, is_ready, running
from bench.systems.system import Bench
from launcher.planning.balancing import find_haproxy
from launcher.ports import free_ports
from mqlake.errors import OperationalError

ROUNDS: Final = 20
CYCLES: Final = 150
"""One client after the other, in each round by both ways."""
TALKERS: Final = 20_000
"""With a place of their own, as many as there are by default."""
NODES: Final = 100
SETTLE_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 30.0


def measure_balancer(bench: Bench) -> Figures:
    """Measure both at a gateway of the system; nothing without HAProxy."""
    try:
        haproxy = find_haproxy()
    except OperationalError as exc:
        bench.note(f"the balancer is not measured: {exc}")
        return {}
    bench.await_quiet()
    with tempfile.TemporaryDirectory(prefix="mqlake-bench-balancer-") as name:
        return _added_to_connect(bench, haproxy, Path(name)) | _idle(bench, Path(name))


def _added_to_connect(bench: Bench, haproxy: str, folder: Path) -> Figures:
    """CONNECT to CONNACK at one gateway, directly and through HAProxy with `predicted`.

    The gateway is there as two nodes, so that the clients of the file are placed; both maps that
    HAProxy asks are as large as they are in operation.
    """
    gateway = bench.gateways[0]
    (port,) = free_ports(1)
    loads = folder / "loads.csv"
    loads.write_text(
        "".join(
            f"default,talker-{number},,group/{number // 2}\ndefault,,1,group/{number // 2}\n"
            for number in range(TALKERS)
        )
    )
    text = (
        f'max_connections = 1000\n[predicted]\nloads_file = "{loads}"\n'
        f'[[proxies]]\nname = "bench"\nruntime_api = "{folder}/haproxy.sock"\n'
        f'configuration_file = "{folder}/haproxy.cfg"\nmap_file = "{folder}/buckets.map"\n'
        f'talkers_file = "{folder}/talkers.map"\n'
        f'[[frontends]]\nname = "mqtt"\nbind = "127.0.0.1:{port}"\n'
    )
    configuration = folder / "haproxy.cfg"
    with control_plane(folder, text + _nodes(2, [gateway])) as plane:
        await_ready("it writes no haproxy.cfg", configuration.exists, plane)
        with running([haproxy, "-W", "-f", str(configuration)], folder / "haproxy.log") as proxy:
            await_ready(
                "its proxy is not ready",
                lambda: is_ready(folder, 2, talkers=TALKERS),
                plane,
                proxy,
            )
            direct: list[float] = []
            through: list[float] = []
            ways = [(direct, gateway), (through, f"127.0.0.1:{port}")]
            for turn in range(ROUNDS):
                for medians, to in ways if turn % 2 else reversed(ways):
                    done = run_cycles(bench.programs.connector, [to], cycles=CYCLES, in_flight=1)
                    assert done.connack_ms is not None
                    medians.append(done.connack_ms.p50)
    added = [late - soon for late, soon in zip(through, direct, strict=True)]
    return {
        figure("CONNECT to CONNACK, directly, p50", "ms"): statistics.median(direct),
        figure("CONNECT to CONNACK, through HAProxy, p50", "ms"): statistics.median(through),
        figure("CONNECT to CONNACK, HAProxy adds, p50", "ms"): statistics.median(added),
    }


def _idle(bench: Bench, folder: Path) -> Figures:
    """Processor time of a control plane that probes and scrapes nodes every five seconds."""
    state = bench.state
    names = [gateway.name for gateway in state.gateways]
    pages = [state.metrics.get(name, "") for name in names]
    with control_plane(folder, f"slots = {NODES}\n" + _nodes(NODES, bench.gateways, pages)) as one:
        await_ready("its nodes do not take clients", partial(is_ready, folder, NODES), one)
        time.sleep(SETTLE_SECONDS)
        process = psutil.Process(one.process.pid)
        before = process.cpu_times()
        time.sleep(IDLE_SECONDS)
        after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    name = f"idle CPU, control plane of the balancer, {NODES} nodes"
    return {figure(name, "% of a core"): 100 * used / IDLE_SECONDS}


def _nodes(count: int, addresses: list[str], pages: list[str] | None = None) -> str:
    """Return tables of nodes, which share some addresses."""
    text = ""
    for number in range(count):
        host, _, port = addresses[number % len(addresses)].rpartition(":")
        text += f'[[nodes]]\nname = "node-{number}"\nhost = "{host}"\nport = {port}\n'
        if pages:
            text += f'metrics_url = "{pages[number % len(pages)]}"\n'
    return text
