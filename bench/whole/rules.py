"""Rules: how much they do, how soon, and how soon they are in force."""

import asyncio
import json
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, Final

from bench.load.loader import Load, LoadResult, new_prefix, run_load
from bench.load.prepared import PastMessage, await_messages, write_messages
from bench.load.session_client import SessionClient
from bench.results.figures import Figures, figure, percentiles
from bench.systems.processes import CpuWatch, cpu_percent_of, processes_of
from bench.systems.system import Bench
from launcher.paths import DataDirectory
from launcher.planning.parts import ROUTER
from mqlake.api_client import ApiClient
from mqlake.errors import OperationalError
from mqlake.processes.heartbeat import read_heartbeat

COLUMNS: Final = "payload.due AS due, payload.publisher AS publisher, payload.number AS number"
"""Columns that the loader looks for in messages that it gets."""
PAYLOAD_BYTES: Final = 150

WARM: Final = 1
"""Runs before those that count: Java compiles their evaluation, as it does once for months."""

IN_FORCE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
METRICS_SECONDS: Final = 30.0
"""How long the engine may take to evaluate and to say so."""
REQUESTS_AT_ONCE: Final = 4
DRAIN_SECONDS: Final = 60.0
"""A message later than that counts as lost."""

FEW: Final = 10
FEW_RATE: Final = 1_000
FEW_SECONDS: Final = 32.0
FEW_RUNS: Final = 3

MANY: Final = 300
MANY_RATE: Final = 5_000
MANY_SECONDS: Final = 30.0
MANY_RUNS: Final = 3

MOST: Final = 500
MOST_RUNS: Final = 3
IDLE_SECONDS: Final = 15.0

CHANGES: Final = 20
PROBE_SECONDS: Final = 0.005
"""Between two messages that look whether a change is in force."""
OUTPUT_SECONDS: Final = 60.0

HISTORY: Final = 2_000_000
HISTORY_SECONDS: Final = 3_600
HISTORY_TOPICS: Final = 5_000
DRY_RUNS: Final = 3
DRY_RUN_SECONDS: Final = 200.0


def measure_rules_latency(bench: Bench) -> list[Figures]:
    """PUBLISH to the output that a rule publishes, at 1,000 messages a second and with 10 rules.

    Once each rule is concerned with a tenth of the messages: 1,000 outputs a second. Then all with
    all: 10,000 outputs a second, each of which is routed and delivered as the messages are.
    """
    results = [
        _latency(bench, everyone=False) | _latency(bench, everyone=True)
        for _ in range(WARM + FEW_RUNS)
    ]
    return results[WARM:]


def _latency(bench: Bench, *, everyone: bool) -> Figures:
    prefix = new_prefix()
    answers = f"{prefix}-answers"
    topic_filter = "#" if everyone else "{}/+"
    rules = {
        number: _rule(
            f"{prefix}/{topic_filter.format(number)}",
            "payload.celsius > 20",
            f"{answers}/{number}/out",
        )
        for number in range(FEW)
    }
    load = Load(
        publish_to=bench.gateways[:1],
        subscribe_to=bench.gateways[-1:],
        publishers=FEW,
        subscribers=FEW,
        everyone=everyone,
        rate=float(FEW_RATE),
        seconds=FEW_SECONDS,
        warmup_seconds=5.0,
        drain_seconds=DRAIN_SECONDS,
        payload_bytes=PAYLOAD_BYTES,
        prefix=prefix,
        answers=answers,
    )
    what = f"{FEW} rules, each for {'all messages' if everyone else 'a tenth'} of {FEW_RATE:,}/s"
    with _rules(bench, rules):
        result, used = _run(bench, load, what)
    if everyone and result.lost:
        bench.note(f"{what}: {result.lost} of {result.expected} outputs were still to come")
        return {figure(f"{what}, outputs", "/s"): result.delivered_per_second, **used}
    latency = result.completed(what).delivery_ms
    return percentiles(f"{what}, publish to republished", latency) | used


def measure_rules_300(bench: Bench) -> list[Figures]:
    """300 rules on each of 5,000 messages a second; a tenth of the messages gives an output.

    Each rule has three conditions, of which all have two in common, and evaluates two of them on
    nearly every message. A subscriber gets the outputs: when the last one comes says how far the
    rules are behind.
    """
    results = []
    what = f"{MANY} rules at {MANY_RATE:,}/s"
    for _ in range(WARM + MANY_RUNS):
        prefix = new_prefix()
        answers = f"{prefix}-answers"
        rules = {
            number: _rule(
                f"{prefix}/#",
                f"payload.celsius > 20 AND payload.number % {MANY} = {number}"
                " AND payload.publisher = 0",
                f"{answers}/0/out",
            )
            for number in range(MANY)
        }
        load = Load(
            publish_to=bench.gateways[:1],
            subscribe_to=bench.gateways[-1:],
            publishers=10,
            subscribers=1,
            rate=float(MANY_RATE),
            seconds=MANY_SECONDS,
            warmup_seconds=5.0,
            drain_seconds=DRAIN_SECONDS,
            payload_bytes=PAYLOAD_BYTES,
            prefix=prefix,
            answers=answers,
            answered=1,
        )
        with _rules(bench, rules) as ids:
            result, figures = _run(bench, load, what)
            # Outputs of different rules have no order among each other.
            latency = replace(result, out_of_order=0).completed(what).delivery_ms
            evaluated = _evaluated(bench, ids, MANY * result.published)
        lasted = load.warmup_seconds + load.seconds + result.last_delivery_seconds_after_end
        figures[figure(f"{what}, evaluations", "/s")] = evaluated / lasted
        figures[figure(f"{what}, behind at the end", "s")] = result.last_delivery_seconds_after_end
        results.append(figures | percentiles(f"{what}, publish to republished", latency))
    return results[WARM:]


def measure_rules_change(bench: Bench) -> Figures:
    """From the request that changes a rule to the first message published by its new version."""
    return asyncio.run(_change(bench))


async def _change(bench: Bench) -> Figures:
    name = new_prefix()
    api = ApiClient(bench.data_dir)
    waits = []
    with _rules(bench, {0: _numbered(f"{name}/in", f"{name}/out", 0)}) as (rule_id,):
        async with _clients(bench, f"{name}/out") as clients:
            for version in range(1, CHANGES + 1):
                begin = asyncio.get_running_loop().time()
                change = asyncio.create_task(
                    asyncio.to_thread(
                        api.put,
                        f"/rules/{rule_id}",
                        _numbered(f"{name}/in", f"{name}/out", version),
                        wait=0,
                    )
                )
                arrived = await _await_outputs(clients, f"{name}/in", {(0, version)}, often=True)
                waits.append(arrived - begin)
                await change
    waits.sort()
    what = "a rule changed to the first message by its new version"
    return {
        figure(f"{what}, p50", "ms"): 1000 * median(waits),
        figure(f"{what}, max", "ms"): 1000 * waits[-1],
    }


def measure_rules_500(bench: Bench) -> list[Figures]:
    """500 rules made, changed, and found again by a Spark that was killed.

    Each time until a message has given an output by every one of them.
    """
    return [asyncio.run(_most(bench)) for _ in range(MOST_RUNS)]


async def _most(bench: Bench) -> Figures:
    name = new_prefix()
    into, out = f"{name}/in", f"{name}/out"
    figures: Figures = {}
    loop = asyncio.get_running_loop()
    api = ApiClient(bench.data_dir)
    bench.await_quiet()

    def bodies(version: int) -> dict[int, dict[str, Any]]:
        return {number: _numbered(into, out, version, number) for number in range(MOST)}

    def wanted(version: int) -> set[tuple[int, int]]:
        return {(number, version) for number in range(MOST)}

    async with _clients(bench, out) as clients:
        begin = loop.time()
        ids = await asyncio.to_thread(_make, api, bodies(1))
        try:
            figures[figure(f"{MOST} rules, written", "s")] = loop.time() - begin
            await asyncio.to_thread(_await_running, api, ids)
            figures[figure(f"{MOST} rules, in force", "s")] = loop.time() - begin
            arrived = await _await_outputs(clients, into, wanted(1), often=False)
            figures[figure(f"{MOST} rules, first outputs of all", "s")] = arrived - begin
            figures |= await asyncio.to_thread(_idle, bench)
            begin = loop.time()
            await asyncio.to_thread(_change_all, api, ids, bodies(2))
            await asyncio.to_thread(_await_running, api, ids)
            figures[figure(f"{MOST} rules changed, in force", "s")] = loop.time() - begin
            arrived = await _await_outputs(clients, into, wanted(2), often=False)
            figures[figure(f"{MOST} rules changed, first outputs of all", "s")] = arrived - begin
            begin = loop.time()
            pid = _kill_spark(bench)
            routed = asyncio.create_task(asyncio.to_thread(_await_routing, bench, pid))
            arrived = await _await_outputs(clients, into, wanted(2), often=False)
            name = f"Spark killed with {MOST} rules"
            figures[figure(f"{name}, first outputs of all", "s")] = arrived - begin
            figures[figure(f"{name}, routing again", "s")] = await routed
        finally:
            await asyncio.to_thread(_delete, api, ids)
    return figures


def _idle(bench: Bench) -> Figures:
    """Processor time while nothing is published."""
    bench.await_quiet()
    percent = cpu_percent_of(processes_of(bench.state), IDLE_SECONDS)
    return {
        figure(f"idle CPU with {MOST} rules, {name}", "% of a core"): used
        for name, used in {**percent, "whole system": sum(percent.values())}.items()
    }


def _kill_spark(bench: Bench) -> int:
    pid = next(one.pid for one in bench.state.processes if one.name == ROUTER)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def _await_routing(bench: Bench, killed: int) -> float:
    """Return how many seconds it takes until another Spark than the one killed routes."""
    path = DataDirectory(bench.data_dir).heartbeat(ROUTER)
    begin = time.monotonic()
    while True:
        heartbeat = read_heartbeat(path)
        if heartbeat is not None and heartbeat.healthy and heartbeat.pid != killed:
            return time.monotonic() - begin
        if time.monotonic() - begin > OUTPUT_SECONDS:
            raise OperationalError(f"Spark does not come back within {OUTPUT_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)


def measure_rules_dry_run(bench: Bench) -> list[Figures]:
    """One rule over 2,000,000 stored messages of an hour; one in ten gives an output."""
    name = new_prefix()
    began_at = time.monotonic()
    last = write_messages(bench.state.bootstrap_servers, _history(name, HISTORY))
    await_messages(bench.data_dir, last)
    bench.note(
        f"prepared: {HISTORY:,} messages, written into the log, in the table after "
        f"{time.monotonic() - began_at:.0f} s"
    )
    api = ApiClient(bench.data_dir)
    sql = (
        f"SELECT topic, payload.celsius AS celsius, payload.sensor AS sensor FROM '{name}/#' "  # noqa: S608
        "WHERE payload.celsius >= 30 AND payload.sensor LIKE 's%'"
    )
    results = []
    for _ in range(DRY_RUNS):
        bench.await_quiet()
        begin = time.monotonic()
        job = api.post("/rules/bench-dry-run/dry_run", {"sql": sql})
        while job["finished_at"] is None:
            if time.monotonic() - begin > DRY_RUN_SECONDS:
                raise OperationalError(f"no dry run within {DRY_RUN_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)
            job = api.get(f"/jobs/{job['id']}")
        elapsed = time.monotonic() - begin
        found = job["result"] or {}
        if (found.get("matched"), found.get("passed")) != (HISTORY, HISTORY // 10):
            raise OperationalError(f"the dry run ended with {job['error'] or found}")
        results.append({figure(f"dry run of a rule over {HISTORY:,} messages", "s"): elapsed})
    return results


def _history(name: str, total: int) -> Iterator[PastMessage]:
    begin_ms = round((time.time() - HISTORY_SECONDS) * 1000)
    for number in range(total):
        celsius = 30.5 if number % 10 == 0 else 20.0 + number % 90 / 10
        payload = b'{"sensor":"s%d","celsius":%.1f,"unit":"C","firmware":"1.4.%d"}' % (
            number % 977,
            celsius,
            number % 7,
        )
        at_ms = begin_ms + number * HISTORY_SECONDS * 1000 // total
        yield PastMessage(f"{name}/{number % HISTORY_TOPICS}", payload, at_ms)


# Rules and their outputs.


def _rule(topic_filter: str, condition: str, topic_name: str) -> dict[str, Any]:
    """Return a rule that publishes messages that the loader can recognise."""
    sql = f"SELECT {COLUMNS} FROM '{topic_filter}' WHERE {condition}"  # noqa: S608
    return {
        "sql": sql,
        "actions": [{"function": "republish", "args": {"topic": topic_name, "qos": 1}}],
    }


def _numbered(topic_filter: str, topic_name: str, version: int, number: int = 0) -> dict[str, Any]:
    """Return a rule whose outputs say which version of which rule has made them."""
    sql = (
        f"SELECT {number} AS rule, {version} AS version, payload.probe AS probe "  # noqa: S608
        f"FROM '{topic_filter}' WHERE payload.probe >= 0 AND payload.celsius > -{number + 1}"
    )
    return {
        "sql": sql,
        "actions": [{"function": "republish", "args": {"topic": topic_name, "qos": 1}}],
    }


@contextmanager
def _rules(bench: Bench, bodies: Mapping[int, dict[str, Any]]) -> Iterator[list[str]]:
    """Have rules in force for the length of a `with` block; gives their identifiers."""
    api = ApiClient(bench.data_dir)
    ids = _make(api, bodies)
    try:
        _await_running(api, ids)
        yield ids
    finally:
        _delete(api, ids)


def _make(api: ApiClient, bodies: Mapping[int, dict[str, Any]]) -> list[str]:
    name = f"bench-{uuid.uuid4().hex[:12]}"
    rules = {f"{name}-{number}": body for number, body in bodies.items()}
    _each(lambda one: api.post("/rules", {"id": one[0], **one[1]}, wait=0), rules.items())
    return list(rules)


def _change_all(api: ApiClient, ids: list[str], bodies: Mapping[int, dict[str, Any]]) -> None:
    rules = zip(ids, bodies.values(), strict=True)
    _each(lambda one: api.put(f"/rules/{one[0]}", one[1], wait=0), rules)


def _delete(api: ApiClient, ids: list[str]) -> None:
    _each(lambda rule_id: api.delete(f"/rules/{rule_id}"), ids)


def _each(do: Callable[[Any], object], items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
        for _ in threads.map(do, items):
            pass


def _await_running(api: ApiClient, ids: list[str]) -> None:
    wanted = set(ids)
    deadline = time.monotonic() + IN_FORCE_SECONDS
    while True:
        running = {one["id"] for one in api.items("/rules", state="running")}
        if wanted <= running:
            return
        if time.monotonic() > deadline:
            missing = sorted(wanted - running)
            raise OperationalError(
                f"{len(missing)} rules of {len(ids)} do not run after {IN_FORCE_SECONDS:.0f} s: "
                f"{api.get(f'/rules/{missing[0]}')['error']}"
            )
        time.sleep(LOOK_SECONDS)


def _evaluated(bench: Bench, ids: list[str], expected: int) -> int:
    """Wait until the engine says that it has evaluated so often; return how often it has."""
    api = ApiClient(bench.data_dir)
    deadline = time.monotonic() + METRICS_SECONDS
    while True:
        found: int = sum(api.get(f"/rules/{one}/metrics")["matched"] for one in ids)
        if found >= expected:
            return found
        if time.monotonic() > deadline:
            raise OperationalError(f"the rules were evaluated {found} times, expected {expected}")


def _run(bench: Bench, load: Load, what: str) -> tuple[LoadResult, Figures]:
    """Put a load on; return also the processor time of each process."""
    bench.await_quiet()
    watch = CpuWatch(processes_of(bench.state))
    result = run_load(bench.programs.loader, load)
    return result, {
        figure(f"{what}, CPU, {name}", "% of a core"): percent
        for name, percent in watch.percent().items()
    }


@asynccontextmanager
async def _clients(bench: Bench, topic_name: str) -> AsyncIterator[tuple[SessionClient, ...]]:
    """Have a publisher at the first gateway and a subscriber at the last."""
    publisher, subscriber = (SessionClient(f"bench-{uuid.uuid4().hex[:12]}") for _ in range(2))
    await publisher.connect(bench.gateways[0], clean_session=True)
    await subscriber.connect(bench.gateways[-1], clean_session=True)
    await subscriber.subscribe(topic_name)
    yield publisher, subscriber
    await publisher.disconnect()
    await subscriber.disconnect()


async def _await_outputs(
    clients: tuple[SessionClient, ...],
    topic_name: str,
    wanted: set[tuple[int, int]],
    *,
    often: bool,
) -> float:
    """Publish until the outputs of (rule, version) have come; return when the last one did.

    Args:
        clients: Publisher and subscriber.
        topic_name: Topic of the published messages.
        wanted: Outputs, of whichever message.
        often: Publish all the time; else once.
    """
    publisher, subscriber = clients
    loop = asyncio.get_running_loop()
    subscriber.arrivals.clear()
    arrived: dict[tuple[int, int], float] = {}
    deadline = loop.time() + OUTPUT_SECONDS
    probe = 0
    while not wanted <= arrived.keys():
        if loop.time() > deadline:
            missing = len(wanted - arrived.keys())
            raise OperationalError(f"no outputs of {missing} rules of {len(wanted)}")
        if often or not probe:
            probe += 1
            await publisher.publish([(topic_name, b'{"probe":%d,"celsius":21.5}' % probe)])
        await asyncio.sleep(PROBE_SECONDS)
        for payload, at in subscriber.arrivals.items():
            row = json.loads(payload)
            arrived.setdefault((row["rule"], row["version"]), at)
        subscriber.arrivals.clear()
    return max(arrived[one] for one in wanted)
