"""How much processor time a message costs at full load, stage by stage.

Each process is charged with its time beyond its idle load, up to the moment at which the system
is quiet again: tables are written later than messages are delivered. Gateways are
measured apart, with publishers on one and subscribers on another.

Log and router have a part in both halves of the way. The load of publishers is put on once more, at
the rate that was reached, without subscribers: the time that they use then is *in* (the log takes
a message and gives it to router and lake, the router finds no gateway), and the time that they used
more before is *out* (the router sends it to a gateway's log topic, the gateway reads it there).

The time of each process is also shown by kind of thread, by the names that Linux keeps of them
(`/proc/<pid>/task/<tid>/comm`, 15 characters).
"""

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from bench.load.loader import Load, LoadResult
from bench.results.figures import Figures, figure
from bench.systems.processes import cpu_percent_of, processes_of, thread_seconds_of, usage_of
from bench.systems.system import Bench
from bench.whole.saturation import closed_loop, open_loop, rate_when_warm
from launcher.planning.parts import LAKE, LOG, ROUTER
from mqlake.processes.status import SystemState

REPETITIONS: Final = 3
IDLE_SECONDS: Final = 5.0

GATEWAY_IN: Final = "gateway in"
GATEWAY_OUT: Final = "gateway out"
LOAD_PROGRAM: Final = "load program"

_JAVA: Final = {
    "compilers": ("C1 CompilerThre", "C2 CompilerThre"),
    "collector": ("VM Thread", "GC Thread#", "G1 "),
}
"""The serial collector of Spark works in the VM's own thread, the log's has its own."""
KINDS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    GATEWAY_IN: {"log client": ("rdk:",)},
    LOG: {"requests": ("data-plane-kafk",), **_JAVA},
    ROUTER: {"tasks": ("Executor task",), "producers": ("kafka-producer-",), **_JAVA},
    LAKE: {"tasks": ("Executor task",), **_JAVA},
    GATEWAY_OUT: {"log client": ("rdk:",)},
}
"""By stage the kinds of threads, each with how their names begin. The network and request threads
of a broker have the same 15 characters. The rest of a gateway is its event loop."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one load, in seconds of processor time."""

    messages: int
    processes: Mapping[str, float]
    """Beyond its idle load."""
    threads: Mapping[str, Mapping[str, float]]
    """By process and name, its idle load with it."""
    load_program: float


def measure_budget(bench: Bench) -> list[Figures]:
    """Measure the price of a message from publisher to subscriber across gateways, QoS 1."""
    flow = closed_loop(bench)
    rate_when_warm(bench, flow)
    return [_measure_once(bench, flow) for _ in range(REPETITIONS)]


def _measure_once(bench: Bench, flow: Load) -> Figures:
    result, whole = _cost(bench, flow)
    rate = result.delivered_per_second
    _, way_in = _cost(bench, replace(open_loop(flow, rate), subscribers=0))
    names = [gateway.name for gateway in bench.state.gateways]
    reached = figure("end to end, closed loop", "messages/s")
    return {reached: rate} | stages(whole, way_in, names[0], names[-1])


def _cost(bench: Bench, load: Load) -> tuple[LoadResult, Cost]:
    bench.await_quiet()
    pids = processes_of(bench.state)
    idle = cpu_percent_of(pids, IDLE_SECONDS)
    begin, before, load_program = time.monotonic(), usage_of(pids), _of_children()
    threads = _threads(bench.state, pids)
    result = bench.run(load).completed("messages at full load")
    load_program = _of_children() - load_program
    bench.await_quiet()
    elapsed, after = time.monotonic() - begin, usage_of(pids)
    cost = Cost(
        result.published,
        {
            name: after[name].cpu_seconds - before[name].cpu_seconds - idle[name] / 100 * elapsed
            for name in pids
        },
        {
            process: {name: spent - threads[process].get(name, 0.0) for name, spent in now.items()}
            for process, now in _threads(bench.state, pids).items()
        },
        load_program,
    )
    return result, cost


def _threads(state: SystemState, pids: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Return the seconds of the threads of gateways, log and the Java of Spark, by process."""
    engines = (ROUTER, LAKE)
    wanted = {gateway.name: pids[gateway.name] for gateway in state.gateways}
    wanted |= {LOG: pids[LOG]}
    wanted |= {one.name: one.figures["java_pid"] for one in state.processes if one.name in engines}
    return {process: thread_seconds_of(pid) for process, pid in wanted.items()}


def stages(whole: Cost, way_in: Cost, gateway_in: str, gateway_out: str) -> Figures:
    """Divide the price of a message among the stages of its way.

    Args:
        whole: Processor time of a load, by process.
        way_in: The same without subscribers.
        gateway_in: Gateway of the publishers.
        gateway_out: Gateway of the subscribers; if it is the same one it is counted once, as the
            first.
    """
    called = {
        gateway_out: GATEWAY_OUT,
        gateway_in: GATEWAY_IN,
        LOG: LOG,
        ROUTER: ROUTER,
        LAKE: LAKE,
    }
    price = {name: 1e6 * spent / whole.messages for name, spent in whole.processes.items()}
    found = {stage: price[name] for name, stage in called.items()}
    others = sum(spent for name, spent in price.items() if name not in called)
    found |= {"other processes": others, "all stages": sum(found.values()) + others}
    for name in (LOG, ROUTER):
        found[f"{called[name]} in"] = 1e6 * way_in.processes[name] / way_in.messages
        found[f"{called[name]} out"] = price[name] - found[f"{called[name]} in"]
    for name, stage in called.items():
        for kind, begins in KINDS[stage].items():
            spent = sum(s for n, s in whole.threads[name].items() if n.startswith(begins))
            found[f"{stage}'s {kind}"] = 1e6 * spent / whole.messages
    found[LOAD_PROGRAM] = 1e6 * whole.load_program / whole.messages
    return {
        figure(f"processor time of a message, {stage}", "µs"): spent
        for stage, spent in found.items()
    }


def _of_children() -> float:
    """Return the processor time of the load programs that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
