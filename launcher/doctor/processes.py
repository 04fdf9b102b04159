"""The supervisor, the processes, their heartbeats, the queries and Java."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from launcher.doctor.contract import Finding, Patient, error, ok, warning
from launcher.java import find_java_home, java_version
from launcher.paths import RUNTIME
from launcher.planning.balancing import HAPROXY
from launcher.planning.parts import LAKE, LOG, QUERY, ROUTER
from mqlake.errors import OperationalError
from mqlake.processes.heartbeat import STALE_SECONDS as STALE_BEAT_SECONDS
from mqlake.processes.heartbeat import read_heartbeat
from mqlake.processes.status import RECOVERED_SECONDS, STALE_SECONDS
from streaming.application.poison_file import Poison

NO_HEARTBEAT: Final = {"supervisor", LOG, HAPROXY}
"""The supervisor writes the state, and asks the log and HAProxy itself."""
ALWAYS: Final = ("router", "history", "state")
"""Queries that run whether there are rules or not."""
LAG_RECORDS: Final = 10_000
LAG_SECONDS: Final = 30.0
"""A query is behind when it is by more records than these, and than it reads in these seconds."""
HEAP_SHARE: Final = 0.95
JUST_STARTED_SECONDS: Final = 60.0
OVERLOAD_STEPS: Final = {
    1: "publishers are slowed down",
    2: "publishers are read no further",
    3: "new clients are refused",
    4: "clients that hold most of its memory are disconnected",
}
STARTING_SECONDS: Final = 180.0
"""Tables are made first, then the queries start that write them; all of that gives way."""
ENGINES: Final = {ROUTER: "conf/router.toml", LAKE: "conf/lake.toml"}
"""The processes with queries, and where their settings are."""


def look_at_system(patient: Patient) -> Iterator[Finding]:
    """Does it run, and does its supervisor get to run?"""
    state = patient.state
    if state is None or not state.is_alive:
        yield error(
            "system",
            f"no system runs on {patient.data.root}",
            f"start it: bin/mqlake up {patient.option}",
        )
        return
    age = time.time() - state.written_at
    if age > STALE_SECONDS:
        yield error(
            "system",
            f"the supervisor (pid {state.pid}) has written nothing for {age:.0f} s",
            f"see {patient.data.logs / 'supervisor.log'}; the machine may be out of memory or disk",
        )
    elif state.phase != "running":
        yield error("system", f"it is {state.phase}", "wait: bin/mqlake status --wait 180")
    else:
        yield ok("system", f"it runs for {time.time() - state.started_at:.0f} s")


def look_at_processes(patient: Patient) -> Iterator[Finding]:
    """Is each process up and well, and has it been all the time?"""
    processes = patient.running.processes
    sick = 0
    for process in processes:
        log = patient.data.logs / f"{process.name}.log"
        begins = process.last_exit is None and process.uptime_seconds < JUST_STARTED_SECONDS
        if process.pid is not None and not process.healthy and begins:
            sick += 1
            detail = f"{process.name} starts: {process.detail}"
            yield warning("processes", detail, "ask again in some seconds")
        elif process.pid is None or not process.healthy:
            sick += 1
            ended = f"; it ended before: {process.last_exit}" if process.last_exit else ""
            yield error("processes", f"{process.name}: {process.detail}{ended}", f"see {log}")
        elif process.restarts and process.uptime_seconds < RECOVERED_SECONDS:
            yield warning(
                "processes",
                f"{process.name} was started again {process.restarts} times, last "
                f"{process.uptime_seconds:.0f} s ago: {process.last_exit}",
                f"see {log}",
            )
    if not sick:
        yield ok("processes", f"all {len(processes)} are well")


def look_at_heartbeats(patient: Patient) -> Iterator[Finding]:
    """Does each process say itself that it is well, and lately?"""
    fresh = 0
    for process in patient.running.processes:
        if process.name in NO_HEARTBEAT or process.pid is None:
            continue
        beat = read_heartbeat(patient.data.heartbeat(process.name))
        if beat is None or beat.pid != process.pid:
            yield error(
                "heartbeats",
                f"{process.name} has not written {patient.data.heartbeat(process.name)}",
                "wait until it has started; else look whether the disk is full",
            )
        elif not beat.is_fresh():
            yield error(
                "heartbeats",
                f"{process.name} is stuck: no heartbeat for {time.time() - beat.written_at:.0f} s, "
                f"after {STALE_BEAT_SECONDS:.0f} s it does not count",
                f"kill {process.pid}; the supervisor starts it again",
            )
        else:
            fresh += 1
    yield ok("heartbeats", f"{fresh} are fresh")


def look_at_load(patient: Patient) -> Iterator[Finding]:
    """Have gateways more to do than they can?"""
    calm = 0
    for gateway in patient.running.gateways:
        step = patient.figures(gateway.name).get("overload_step", 0)
        if step:
            yield warning(
                "load",
                f"{gateway.name} is overloaded: {OVERLOAD_STEPS[step]}",
                "add gateways, or limit clients ([limits] in conf/gateway.toml); see that the log "
                "keeps up",
            )
        else:
            calm += 1
    yield ok("load", f"{calm} gateways are not overloaded")


def look_at_queries(patient: Patient) -> Iterator[Finding]:
    """Do the queries of Spark run, and do they keep up?"""
    found = {name: patient.figures(name).get("queries", {}) for name in ENGINES}
    for name, queries in found.items():
        if queries:
            yield from _look_at_queries_of(patient, name, queries)
        elif patient.process(name) is not None or not any(found.values()):
            detail = f"those of {name} are not known yet"
            yield warning("queries", detail, "ask again in some seconds")
    if any(found.values()):
        running = sum(one["active"] for queries in found.values() for one in queries.values())
        yield ok("queries", f"{running} run")


def _look_at_queries_of(
    patient: Patient, process: str, queries: Mapping[str, Any]
) -> Iterator[Finding]:
    log = patient.data.logs / f"{process}.log"
    figures = patient.figures(process)
    engine = patient.process(process)
    starting = engine is not None and engine.uptime_seconds < STARTING_SECONDS
    for name, one in queries.items():
        yield from _look_at_query(name, one, log, is_starting=starting)
    for log_topic, readers in figures.get("log_held_by", {}).items():
        yield warning(
            "queries",
            f"{log_topic} keeps more than its retention: {', '.join(readers)} must read it",
            f"it is deleted then; if they make no progress, see {log}",
        )
    for target, waiting in figures.get("undelivered", {}).items():
        yield warning(
            "queries",
            f"{waiting['records']} records ({waiting['bytes']} bytes) wait for {target}, which does"
            f" not take them, for {waiting['oldest_seconds']:.0f} s",
            "they are sent when it does: check the brokers that have its replicas",
        )
    router = queries.get("router", {})
    if router.get("active") and not router["real_time"]:
        yield warning(
            "queries",
            "the router runs in micro-batches, which adds about 0.1 s to each message",
            "give Spark more task slots: setting master in conf/router.toml",
        )
    if refused := figures.get("refused_activations", 0):
        yield error(
            "queries",
            f"{refused} activations of rules are not signed by this system, and were refused: "
            "another program writes its log",
            f"find out who may write mqlake.rules; see which rules in {log}",
        )


def _look_at_query(
    name: str, query: Mapping[str, Any], log: Path, *, is_starting: bool
) -> Iterator[Finding]:
    shown = f"{query['tenant']}/{query['rule']}" if query.get("rule") else name
    restarts = query["restarts"]
    if not query["active"] and name in ALWAYS and is_starting and not restarts:
        yield warning("queries", f"{shown} is starting", "ask again in some seconds")
    elif not query["active"] and (name in ALWAYS or restarts):
        yield error("queries", f"{shown} does not run", f"see {log}")
    elif restarts:
        yield warning("queries", f"{shown} failed {restarts} times", f"see {log}")
    lag, rate = query["lag_records"], query["input_rows_per_second"]
    if lag is not None and lag > max(LAG_RECORDS, rate * LAG_SECONDS):
        yield warning(
            "queries",
            f"{shown} is {lag} records behind and reads {rate:.0f} a second",
            "it catches up when less comes in; else give Spark more cores or memory",
        )


def look_at_query_application(patient: Patient) -> Iterator[Finding]:
    """Have users' queries the Spark that they need?"""
    figures = patient.figures(QUERY)
    full = figures.get("ends", {}).get("memory", 0)
    stuck = figures.get("ends", {}).get("asked", 0)
    if full:
        yield warning(
            "query",
            f"queries have filled the heap of their Spark {full} times, which ended it",
            "raise heap_mb in conf/query.toml, or look in audit_log and the API's log for who asks",
        )
    if stuck:
        yield warning(
            "query",
            f"their Spark was ended {stuck} times for queries that did not stop",
            "it is back for the next query; look for who asks for so much",
        )
    if not full and not stuck and figures:
        yield ok("query", f"{figures['phase']}, {figures['uses']} uses")


def look_at_poison(patient: Patient) -> Iterator[Finding]:
    """Has the engine died of a message?"""
    try:
        entries = Poison(patient.data.root).entries()
    except OperationalError as exc:
        yield error("poison", str(exc), "delete the file")
        return
    for entry in entries:
        place = entry.place
        what = f"rule {place.tenant}/{place.rule} on the message at {place.record}"
        if entry.skipped and entry.deaths:
            yield error(
                "poison",
                f"the engine ended {entry.deaths} times while it evaluated {what}; the message is "
                "skipped and is a dead letter, the rule is paused",
                "change the rule, then: bin/mqlake poison forget",
            )
        elif entry.skipped:
            yield warning(
                "poison", f"an operator had {what} skipped", "bin/mqlake poison forget ends it"
            )
        else:
            yield warning(
                "poison",
                f"the engine has ended once while it evaluated {what}",
                f"look at the rule; to pass over the message: bin/mqlake poison skip {place.rule} "
                f"{place.record} --tenant {place.tenant}",
            )
    if not entries:
        yield ok("poison", "no message has ended the engine")


def look_at_java(patient: Patient) -> Iterator[Finding]:
    """Is there a Java, and have the heaps of the engines room?"""
    try:
        home = find_java_home(RUNTIME)
    except OperationalError as exc:
        yield error("java", str(exc), "set JAVA_HOME, or run bin/mqlake up once")
        return
    yield ok("java", f"version {java_version(home)} in {home}")
    for name, settings in ENGINES.items():
        figures = patient.figures(name)
        used, most = figures.get("heap_used_bytes", 0), figures.get("heap_max_bytes", 0)
        process = patient.process(name)
        if not most or process is None:
            continue
        detail = f"heap of {name}: {used >> 20} of {most >> 20} MiB in use"
        if used > HEAP_SHARE * most and process.uptime_seconds > JUST_STARTED_SECONDS:
            yield warning(
                "java", detail, f"raise heap_mb in {settings}, if that is so each time you look"
            )
        else:
            yield ok("java", detail)
