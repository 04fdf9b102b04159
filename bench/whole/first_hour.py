"""Measure what a new user gets: the first minutes of a system, with nothing warmed up.

The bench starts a system of its own three times. The first run has the demo, queries, a fan-out,
connects and three minutes of messages, and shows how much memory they take. The second has five
minutes of messages as soon as the system is ready, then a burst; the third has its burst after one
minute. At last the bench stops the system while its parts start. All takes about 14 minutes.
"""

import subprocess
import time
from collections.abc import Callable
from typing import Final

from bench.load.connector import Cycle, run_cycles
from bench.load.loader import Load, run_load
from bench.results.figures import Figure, Figures, figure, percentiles
from bench.systems.processes import MIB, processes_of
from bench.systems.system import Bench
from bench.whole.memory import PARTS, PYTHON, memory_figures, memory_of
from launcher.testing.systems import PROGRAM, LocalSystem
from mqlake.errors import OperationalError

NAME: Final = "first hour"
PAYLOAD_BYTES: Final = 64
LATENCY_SECONDS: Final = 300.0
BEFORE_MEMORY_SECONDS: Final = 180.0
SECOND_MINUTE: Final = 60.0
BURST_SECONDS: Final = 8.0
CYCLES: Final = 3_000
CYCLES_IN_FLIGHT: Final = 8
EARLY_SECONDS: Final = 3.0
END_SECONDS: Final = 60.0
"""Limit: `up` has ended soon after `down`."""
SQL: Final = "SELECT topic, count(*) AS messages FROM messages GROUP BY topic ORDER BY topic"


def measure_first_hour(bench: Bench) -> list[Figures]:
    """Measure three starts and an early end; nothing when the system is not the bench's own."""
    system = bench.own
    if system is None:
        bench.note("first hour: only a system of the bench's own is stopped and started")
        return []
    assert bench.ready_seconds is not None
    figures: Figures = {_figure("ready, new data directory", "s"): bench.ready_seconds}
    figures |= _questions(system)
    figures |= _fan_out(bench)
    figures |= _connects(bench)
    run_load(bench.programs.loader, _steady(bench, BEFORE_MEMORY_SECONDS))
    figures |= _memory(bench)
    figures[_figure("down", "s")] = _seconds(system.down)
    figures[_figure("ready again", "s")] = _seconds(system.up)
    steady = run_load(bench.programs.loader, _steady(bench, LATENCY_SECONDS))
    figures |= percentiles(_named("delivery at 1,000/s, five minutes"), steady.delivery_ms)
    figures |= _burst(bench, "50 to 1 after five minutes")
    system.down()
    system.up()
    steady = run_load(bench.programs.loader, _steady(bench, SECOND_MINUTE))
    figures |= percentiles(_named("delivery at 1,000/s, first minute"), steady.delivery_ms)
    figures |= _burst(bench, "50 to 1 in the second minute")
    system.down()
    figures[_figure("down while parts start", "s")] = _early_end(system)
    system.up()  # the bench ends what it has started
    return [figures]


def _named(what: str) -> str:
    return f"{NAME}, {what}"


def _figure(what: str, unit: str) -> Figure:
    return figure(_named(what), unit)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def _command(system: LocalSystem, *words: str) -> float:
    """Return how long a command of `bin/mqlake` took, seconds."""
    command = [str(PROGRAM), *words, "--data-dir", str(system.data_dir)]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OperationalError(f"{' '.join(words)}: {done.stderr[-1000:]}")
    return time.monotonic() - begin


def _questions(system: LocalSystem) -> Figures:
    _command(system, "demo")
    figures = {_figure("first SQL after the demo", "s"): _command(system, "sql", SQL)}
    figures[_figure("SQL again", "s")] = _command(system, "sql", SQL)
    _command(system, "rules", "apply")
    dry_run = _command(system, "rules", "dry-run", "demo-heat")
    return figures | {_figure("first dry run, of the demo", "s"): dry_run}


def _steady(bench: Bench, seconds: float) -> Load:
    """Return 1,000 messages a second at one gateway, from now on."""
    gateway = bench.gateways[:1]
    return Load(
        publish_to=gateway,
        subscribe_to=gateway,
        publishers=10,
        subscribers=1,
        rate=1000.0,
        seconds=seconds,
        warmup_seconds=0.0,
        payload_bytes=PAYLOAD_BYTES,
    )


def _fan_out(bench: Bench) -> Figures:
    load = Load(
        publish_to=bench.gateways[:1],
        subscribe_to=bench.gateways,
        publishers=1,
        subscribers=100,
        everyone=True,
        rate=100.0,
        seconds=BURST_SECONDS,
        payload_bytes=PAYLOAD_BYTES,
    )
    result = run_load(bench.programs.loader, load)
    return percentiles(_named("1 to 100 at 100/s"), result.completed("1 to 100").delivery_ms)


def _burst(bench: Bench, what: str) -> Figures:
    gateway = bench.gateways[:1]
    load = Load(
        publish_to=gateway,
        subscribe_to=gateway,
        publishers=50,
        subscribers=1,
        await_delivery=True,
        seconds=BURST_SECONDS,
        payload_bytes=PAYLOAD_BYTES,
    )
    result = run_load(bench.programs.loader, load).completed(what)
    return {_figure(what, "messages/s"): result.delivered_per_second}


def _connects(bench: Bench) -> Figures:
    figures = {}
    for subscribe, kind in ((False, "clean connects"), (True, "with a subscription each")):
        done = run_cycles(
            bench.programs.connector,
            bench.gateways[:1],
            cycles=CYCLES,
            in_flight=CYCLES_IN_FLIGHT,
            cycle=Cycle(subscribe=subscribe),
        )
        what = f"{kind}, {CYCLES_IN_FLIGHT} at a time"
        figures[_figure(what, "connections/s")] = done.per_second
    return figures


def _memory(bench: Bench) -> Figures:
    """Return what the system takes while the query's Spark runs, and what of it is not that."""
    pids = processes_of(bench.state)
    figures = memory_figures(pids)
    whole = figures[figure("memory, whole system", "MiB")]
    query = memory_of({"query": pids["query"]})["query"]
    spark = sum(query.get(part, 0) for part in PARTS if part != PYTHON) / MIB
    return figures | {
        _figure("memory, the query's Spark included", "MiB"): whole,
        _figure("memory without the query's Spark", "MiB"): whole - spark,
    }


def _early_end(system: LocalSystem) -> float:
    """Return how long `down` takes 3 s after `up` began."""
    starting = system.up_in_foreground()
    try:
        time.sleep(EARLY_SECONDS)
        seconds = _seconds(system.down)
        starting.wait(END_SECONDS)
        return seconds
    finally:
        starting.kill()
        starting.communicate()
