"""How much processor time a message costs at full load, stage by stage.

Each process is charged with what it uses beyond its idle load, up to the moment at which the system
is quiet again: tables are written later than messages are delivered. Of Spark it is also told which
threads it was.
"""

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mqlake.bench.figures import Figures, figure
from mqlake.bench.loader import Load
from mqlake.bench.processes import cpu_percent_of, processes_of, thread_seconds_of, usage_of
from mqlake.bench.system import Bench
from mqlake.local.parts import LOG, STREAMING

REPETITIONS: Final = 3
LOAD_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 5.0

GATEWAY_IN: Final = "gateway in"
GATEWAY_OUT: Final = "gateway out"
LOAD_PROGRAM: Final = "load program"

_THREADS: Final = {
    "compilers": ("C1 CompilerThre", "C2 CompilerThre"),
    "collector": ("VM Thread",),
    "tasks": ("Executor task l",),
}
"""Kinds of Java's threads and Spark's, by the names that Linux keeps; the serial collector works in
the VM's own thread."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one load has cost, in seconds of processor time."""

    messages: int
    processes: Mapping[str, float]
    """Beyond its idle load."""
    spark_threads: Mapping[str, float]
    """By kind."""
    load_program: float


def measure_budget(bench: Bench) -> list[Figures]:
    """Measure the price of a message from publisher to subscriber across gateways, QoS 1."""
    flow = Load(
        publish_to=bench.gateways[:1],
        subscribe_to=bench.gateways[-1:],
        publishers=20,
        subscribers=4,
        seconds=LOAD_SECONDS,
        window=200,
        await_delivery=True,
    )
    return [_measure_once(bench, flow) for _ in range(REPETITIONS)]


def _measure_once(bench: Bench, flow: Load) -> Figures:
    bench.await_quiet()
    state = bench.state
    pids = processes_of(state)
    idle = cpu_percent_of(pids, IDLE_SECONDS)
    begin, before, load_program = time.monotonic(), usage_of(pids), _of_children()
    java = next(one.figures["java_pid"] for one in state.processes if one.name == STREAMING)
    threads = thread_seconds_of(java)
    result = bench.run(flow).completed("messages at full load")
    load_program = _of_children() - load_program
    bench.await_quiet()
    elapsed, after, threads_after = (
        time.monotonic() - begin,
        usage_of(pids),
        thread_seconds_of(java),
    )
    cost = Cost(
        result.published,
        {
            name: after[name].cpu_seconds - before[name].cpu_seconds - idle[name] / 100 * elapsed
            for name in pids
        },
        {
            kind: sum(threads_after.get(name, 0.0) - threads.get(name, 0.0) for name in names)
            for kind, names in _THREADS.items()
        },
        load_program,
    )
    gateways = [gateway.name for gateway in state.gateways]
    rate = figure("end to end, closed loop", "messages/s")
    return {rate: result.delivered_per_second} | stages(cost, gateways[0], gateways[-1])


def stages(cost: Cost, gateway_in: str, gateway_out: str) -> Figures:
    """Divide the price of a message among the stages of its way.

    Args:
        cost: Of a load.
        gateway_in: Of the publishers.
        gateway_out: Of the subscribers; when it is the same one it is counted once, as the first.
    """
    called = {gateway_out: GATEWAY_OUT, gateway_in: GATEWAY_IN, LOG: LOG, STREAMING: "Spark"}
    seconds = {stage: cost.processes[name] for name, stage in called.items()}
    others = sum(s for name, s in cost.processes.items() if name not in called)
    seconds |= {"other processes": others, "all stages": sum(seconds.values()) + others}
    seconds |= {f"Spark's {kind}": spent for kind, spent in cost.spark_threads.items()}
    seconds[LOAD_PROGRAM] = cost.load_program
    return {
        figure(f"processor time of a message, {stage}", "µs"): 1e6 * spent / cost.messages
        for stage, spent in seconds.items()
    }


def _of_children() -> float:
    """Return the processor time of the load programs that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
