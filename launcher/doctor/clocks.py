"""Checks that the clocks of all who stamp messages and records agree.

What the product tolerates, by who goes wrong beyond it:

- *A gateway* stamps a message with its arrival. Expiry and latencies are wrong by the difference.
  Windows wait for late messages; a gateway that is ahead by more than that ends them for the
  messages of all others, and those of one that is behind are late.
- *A broker* stamps records with their append time, by which sessions expire, wills come and
  gateways are found dead: its difference from other brokers counts.
- *This machine* closes windows by time of receipt. A calendar that is ahead deletes no more than
  time has passed (`streaming/tables/deletion_clock.py`).
"""

import time
from collections.abc import Iterator
from typing import Final

from launcher.doctor.contract import Finding, Level, Patient, ok
from launcher.doctor.traffic import ANSWER_SECONDS, gateways_of
from mqlake.log.security import client_config
from mqlake.processes.heartbeat import AHEAD_SECONDS, read_heartbeat
from mqlake.records.messages import GATEWAYS, SESSIONS

SKEW_SECONDS: Final = 1.0
"""The API judges a clock by the fastest of several heartbeats; more than this is no delay."""
WRONG_SECONDS: Final = 10.0
"""So long windows wait for messages unless a rule says otherwise (`rules/language/windows.py`)."""
SILENT_SECONDS: Final = 2.0
"""Gateways append a heartbeat more often: the newest one is no older, by a clock that agrees."""
WITH_LOG_TIME: Final = (GATEWAYS, SESSIONS)
"""Log topics whose records bear the time of the broker that took them."""
SET_BY_NTP: Final = "set the clocks of both machines by NTP; "


def look_at_clocks(patient: Patient) -> Iterator[Finding]:
    """Do the clocks of this machine, the gateways and the log agree, and did ours not go back?"""
    yield from _own(patient)
    yield from _gateways(patient)
    yield from _brokers(patient)


def _own(patient: Patient) -> Iterator[Finding]:
    """Has anybody on this machine written down a time that has not come yet?"""
    now = time.time()
    told = {"supervisor": patient.running.written_at}
    for process in patient.running.processes:
        beat = read_heartbeat(patient.data.heartbeat(process.name))
        if beat is not None and beat.pid == process.pid:
            told[process.name] = beat.written_at
    ahead = {name: at - now for name, at in told.items() if at - now > AHEAD_SECONDS}
    if ahead:
        names = ", ".join(ahead)
        yield Finding(
            "clock",
            _level(max(ahead.values())),
            f"the last heartbeat of {names} is {max(ahead.values()):.0f} s in the future: the "
            "clock went back",
            "set the clock by NTP, and let it be slewed and not stepped (chrony: makestep at the "
            "start only); message expiry and retention go by it",
        )


def _gateways(patient: Patient) -> Iterator[Finding]:
    agreeing = 0
    for gateway in gateways_of(patient):
        skew = gateway["clock_ahead_seconds"]
        if not gateway["alive"] or skew is None:
            continue
        if abs(skew) <= SKEW_SECONDS:
            agreeing += 1
            continue
        advice = "message expiry and latencies go by them"
        if skew > WRONG_SECONDS:
            advice += "; windows of rules end early for what comes by other gateways"
        elif skew < -WRONG_SECONDS:
            advice += "; windows of rules have ended when its messages come"
        yield Finding(
            "clock",
            _level(skew),
            f"the clock of {gateway['name']} is {_difference(skew)} the log's",
            SET_BY_NTP + advice,
        )
    if agreeing:
        yield ok("clock", f"{agreeing} gateways agree with the log within {SKEW_SECONDS:g} s")


def _brokers(patient: Patient) -> Iterator[Finding]:
    """Compare the newest append times of each leader with our clock.

    Whether it is behind only the gateways' heartbeats tell, of which there are two each second:
    what else is old may be old.
    """
    newest, reason = _newest(patient.running.bootstrap_servers)
    if reason:
        yield ok("clock", f"clocks of the log's brokers are not compared: {reason}")
    now = time.time()
    is_alive = any(gateway["alive"] for gateway in gateways_of(patient))
    for broker in sorted({broker for _, broker in newest}):
        told = [at - now for (_, where), at in newest.items() if where == broker]
        skew = max(0.0, *told)
        beat = newest.get((GATEWAYS, broker))
        if not skew and is_alive and beat is not None:
            skew = min(0.0, beat - now + SILENT_SECONDS)
        if abs(skew) > SKEW_SECONDS:
            yield Finding(
                "clock",
                _level(skew),
                f"the clock of the log's broker {broker} is {_difference(skew)} this machine's",
                SET_BY_NTP + "the end of sessions and the delay of wills go by the brokers' clocks",
            )
        else:
            yield ok("clock", f"the log's broker {broker} is not ahead of this machine")


def _newest(servers: str) -> tuple[dict[tuple[str, str], float], str]:
    """Return the newest append time by log topic and leader, in seconds since 1970.

    And why there is none, if that is so: a log that keeps the Kafka protocol may not tell it
    (ListOffsets of the greatest timestamp, Kafka 3.0). Neither when the log does not answer: that
    is another check.
    """
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({**client_config(servers), "log_level": 2})
    found: dict[tuple[str, str], float] = {}
    try:
        metadata = admin.list_topics(timeout=ANSWER_SECONDS)
        leaders = {
            TopicPartition(log_topic, number): metadata.brokers[partition.leader]
            for log_topic in WITH_LOG_TIME
            for number, partition in metadata.topics[log_topic].partitions.items()
            if partition.leader in metadata.brokers
        }
    except (KafkaException, KeyError):
        return {}, ""
    newest: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
    wanted = dict.fromkeys(leaders, newest)
    try:
        asked = admin.list_offsets(wanted, request_timeout=ANSWER_SECONDS)
        for place, answer in asked.items():
            at_ms, leader = answer.result(ANSWER_SECONDS).timestamp, leaders[place]
            key = place.topic, f"{leader.id} ({leader.host}:{leader.port})"
            if at_ms > 0:
                found[key] = max(at_ms / 1000, found.get(key, 0.0))
    except (KafkaException, TimeoutError) as exc:
        return {}, f"the log does not tell of its newest records ({exc})"
    return found, "" if found else "the log does not tell the times of its newest records"


def _level(seconds: float) -> Level:
    return Level.ERROR if abs(seconds) > WRONG_SECONDS else Level.WARNING


def _difference(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"
