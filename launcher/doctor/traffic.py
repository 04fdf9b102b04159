"""The log, the API, and a message through each gateway."""

import json
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from launcher.doctor.contract import Finding, Patient, error, ok, warning
from launcher.planning.parts import FEDERATION
from mqlake.api_client import api_context
from mqlake.errors import OperationalError
from mqlake.log.durability import MEANING, Durability
from mqlake.log.security import client_config
from mqlake.processes.control_socket import ask_balancer
from mqlake.processes.status import GatewayAddress
from mqlake.records.messages import INBOUND, delivery_topic

ANSWER_SECONDS: Final = 5.0
SLOW_SECONDS: Final = 1.0
BEHIND_RECORDS: Final = 10_000
"""A connected neighbour that is behind by this number of records does not keep up."""
PROBE_TOPIC: Final = "mqlake/doctor/"
"""Begins the topics of this command, which end in a random part; the history has them."""
_NOT_AUTHORIZED: Final = {"Not authorized", "Bad user name or password"}


def look_at_log(patient: Patient) -> Iterator[Finding]:
    """Does the log answer, and has each partition a leader and all its replicas?"""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from mqlake.log.log_topics import SHARED_LOG_TOPICS

    servers = patient.running.bootstrap_servers
    log = patient.data.logs / "kafka.log"
    admin = AdminClient({**client_config(servers), "log_level": 2})
    try:
        metadata = admin.list_topics(timeout=ANSWER_SECONDS)
    except KafkaException as exc:
        yield error("log", f"{servers} does not answer: {exc.args[0].str()}", f"see {log}")
        return
    wanted = [
        *SHARED_LOG_TOPICS,
        *(delivery_topic(gateway.name) for gateway in patient.running.gateways),
    ]
    missing = [log_topic for log_topic in wanted if log_topic not in metadata.topics]
    if missing:
        yield error(
            "log",
            f"log topics are missing: {', '.join(missing)}",
            "restart the system: it makes them",
        )
    partitions = 0
    for log_topic in wanted:
        if log_topic in missing:
            continue
        for number, partition in metadata.topics[log_topic].partitions.items():
            partitions += 1
            place = f"partition {number} of {log_topic}"
            if partition.leader < 0:
                yield error("log", f"{place} has no leader", f"start its broker; see {log}")
            elif len(partition.isrs) < len(partition.replicas):
                held = f"{len(partition.isrs)} of {len(partition.replicas)} replicas"
                yield warning("log", f"{place} has {held} in sync", "start the broker that is away")
    if not missing:
        yield from _growth(servers, len(metadata.topics[INBOUND].partitions))
    yield ok(
        "log",
        f"{len(metadata.brokers)} brokers at {servers}, {len(wanted) - len(missing)} log topics, "
        f"{partitions} partitions, {len(metadata.topics[INBOUND].partitions)} of {INBOUND}"
        if INBOUND not in missing
        else f"{len(metadata.brokers)} brokers at {servers}",
    )


def _growth(servers: str, present: int) -> Iterator[Finding]:
    """Are messages in all partitions of their log topic, and all who read there, too?"""
    from mqlake.errors import LogError
    from mqlake.log.growth_watch import GrowthWatch

    try:
        watch = GrowthWatch(servers, ANSWER_SECONDS)
    except LogError as exc:
        yield error("log", f"its growth is not known: {exc}", "ask again")
        return
    used, growth = watch.used(), watch.growth
    if growth is not None and not growth.is_done:
        yield warning(
            "log",
            f"it grows from {growth.before} to {growth.after} partitions, last step: {growth.step}",
            f"bin/mqlake log grow --partitions {growth.after} goes on, and says what it waits for",
        )
    elif present > used:
        yield warning(
            "log",
            f"{INBOUND} has {present} partitions, messages are in {used}: the others stay empty, "
            "and each message costs more",
            "bin/mqlake log grow puts messages into more: Kafka takes no partition away",
        )


def look_at_durability(patient: Patient) -> Iterator[Finding]:
    """Does the log keep acknowledged records as it was set to?"""
    from mqlake.errors import LogError
    from mqlake.log.admin import check_durability

    wanted = Durability(patient.running.durability)
    try:
        check_durability(patient.running.bootstrap_servers, wanted, ANSWER_SECONDS)
    except LogError as exc:
        what_to_do = (
            "restart the system: it configures the log as durability in conf/local.toml says"
            if exc.definite
            else f"see {patient.data.logs / 'kafka.log'}"
        )
        yield error("durability", str(exc), what_to_do)
    else:
        yield ok("durability", f"{wanted}: {MEANING[wanted]}")


def look_at_api(patient: Patient) -> Iterator[Finding]:
    """Does the API answer, and take its own token?"""
    log = patient.data.logs / "api.log"
    try:
        token = patient.data.api_token.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as exc:
        yield error("api", f"its token cannot be read: {exc}", "run this as the system's user")
        return
    try:
        ask(patient, "/session", token)
        begin = time.monotonic()
        ask(patient, "/ready", token)
    except urllib.error.HTTPError as exc:
        problem = exc.read().decode(errors="replace")
        if exc.code == HTTPStatus.SERVICE_UNAVAILABLE:  # other checks name the cause
            yield warning(
                "api", f"some parts are not ready: {_detail(problem)}", "see the other findings"
            )
        else:
            yield error("api", f"it answers {exc.code}: {_detail(problem)}", f"see {log}")
    except OSError as exc:
        url = patient.running.api_url
        yield error("api", f"{url} does not answer: {exc}", f"see {log}")
    else:
        taken = (time.monotonic() - begin) * 1000
        yield ok("api", f"{patient.running.api_url} answers in {taken:.0f} ms")


def look_at_gateways(patient: Patient) -> Iterator[Finding]:
    """Does a message come back that a client of each gateway publishes?"""
    for gateway in patient.running.gateways:
        log = patient.data.logs / f"{gateway.name}.log"
        try:
            accepted, delivered = round_trip(gateway, patient.username, patient.password)
        except PermissionError as exc:
            yield warning(
                "gateways",
                f"{gateway.name} refuses clients without a user: {exc}",
                "look again with --username and --password-file",
            )
        except (OSError, OperationalError) as exc:
            yield error("gateways", f"{gateway.name} ({gateway.url}): {exc}", f"see {log}")
        else:
            found = f"{gateway.name}: acknowledged in {accepted * 1000:.1f} ms, "
            found += f"delivered in {delivered * 1000:.1f} ms"
            if delivered > SLOW_SECONDS:
                yield warning("gateways", found, "the machine or the router is busy; ask again")
            else:
                yield ok("gateways", found)


def look_at_gone_gateways(patient: Patient) -> Iterator[Finding]:
    """Is any gateway away for good?"""
    here = {gateway.name for gateway in patient.running.gateways}
    for gateway in gateways_of(patient):
        if not gateway["alive"] and gateway["name"] not in here:
            yield warning(
                "gone gateways",
                f"{gateway['name']} is away since {gateway['last_seen']} and gets messages",
                f"start it, or, if it is gone for good: bin/mqlake gateway retire "
                f"{gateway['name']} --data-dir {patient.data.root}",
            )


def look_at_balancer(patient: Patient) -> Iterator[Finding]:
    """Do clients come through the balancer, which nodes do they come to, and do proxies follow?"""
    entrances = patient.running.entrances
    if not entrances:
        return
    log = patient.data.logs / "balancer.log"
    try:
        found = ask_balancer(patient.data.balancer / "control.sock", action="status")
    except OperationalError as exc:
        yield error("balancer", str(exc), f"live connections stay; see {log}")
        return
    for proxy in found["proxies"]:
        if proxy["problem"]:
            advice = "it goes on with what it has; see its log"
            yield error("balancer", f"proxy {proxy['name']}: {proxy['problem']}", advice)
    for node in found["nodes"]:
        if node["takes_clients"]:
            continue
        if node["draining"]:
            again = f"bin/mqlake balancer undrain {node['name']} gives it clients again"
            yield warning("balancer", f"{node['name']} is drained", again)
        elif node["overloaded"]:
            level = f"{node['name']} is overloaded: level {node['overload_level']} of 10"
            yield warning("balancer", level, "it takes clients again by itself; else add gateways")
        else:
            factors = node["factors"].items()
            reasons = [f"{name}: {one['reason']}" for name, one in factors if not one["healthy"]]
            said = f"{node['name']} takes no new clients: {'; '.join(reasons) or 'not known why'}"
            yield error("balancer", said, f"see the log of that node, and {log}")
    if found["left_out"]:
        names = ", ".join(found["left_out"])
        yield warning("balancer", f"no slot for {names}", "raise slots in conf/balancer.toml")
    address = urlsplit(entrances[0])
    entrance = GatewayAddress("balancer", address.hostname or "", address.port or 0)
    try:
        round_trip(entrance, patient.username, patient.password)
    except PermissionError:
        pass  # the check of the gateways says so
    except (OSError, OperationalError) as exc:
        yield error("balancer", f"{entrances[0]}: {exc}", f"see {patient.data.output('haproxy')}")
        return
    taking = sum(node["takes_clients"] for node in found["nodes"])
    yield ok("balancer", f"{taking} of {len(found['nodes'])} nodes take clients")


def look_at_federation(patient: Patient) -> Iterator[Finding]:
    """Are neighbours there, and do they get everything?"""
    figures = patient.figures(FEDERATION)
    if not figures:
        return  # there is none, or it has said nothing: `heartbeats` says so
    links = figures["links"]
    for link in links:
        site = f"site {link['site']}"
        if link["gone"]:
            yield error(
                "federation",
                f"{site} was away for longer than the log is kept: {link['gone']} times",
                "raise log_retention_hours and log_retention_bytes in conf/local.toml",
            )
        if not link["there"]:
            found = f"{site} is away ({link['reason']}), {link['behind']} records behind"
            yield warning("federation", found, "it gets them when it is back; see its federator")
        elif link["behind"] > BEHIND_RECORDS:
            found = f"{site} is {link['behind']} records behind"
            yield warning("federation", found, "the link is slower than the messages")
    overlay = figures.get("overlay", {"apart": [], "sites": []})
    # Of a neighbour that is away it is said above.
    apart = sorted(set(overlay["apart"]) - {link["site"] for link in links})
    if apart:
        found = f"announced by others, but not reachable: site {', '.join(map(str, apart))}"
        yield warning("federation", found, "see their federators and those between")
    if overlay["sites"]:
        yield ok("federation", f"{len(overlay['sites'])} sites are on the map")
    there = sum(link["there"] for link in links)
    if there:
        yield ok("federation", f"{there} of {len(links)} neighbours there")


def gateways_of(patient: Patient) -> list[dict[str, Any]]:
    """Return the API's list; nothing when it does not answer: that is another check."""
    try:
        token = patient.data.api_token.read_text(encoding="ascii").strip()
        gateways: list[dict[str, Any]] = ask(patient, "/gateways", token)["items"]
    except (OSError, ValueError, KeyError):
        return []
    return gateways


def look_at_metrics(patient: Patient) -> Iterator[Finding]:
    """Does each process tell its metrics?"""
    urls = patient.running.metrics
    told = 0
    for name, url in urls.items():
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                answer.read()
        except OSError as exc:
            log = patient.data.logs / f"{name}.log"
            yield warning("metrics", f"{name} serves none at {url}: {exc}", f"see {log}")
        else:
            told += 1
    if told:
        yield ok("metrics", f"{told} processes serve them")


def round_trip(
    gateway: GatewayAddress, username: str | None, password: str | None
) -> tuple[float, float]:
    """Publish a message to ourselves; return the seconds to its PUBACK and to its coming back.

    Raises:
        PermissionError: The gateway wants a login.
        OperationalError: It does not answer in time.
        OSError: It cannot be reached.
    """
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    connected, subscribed, accepted, delivered = (_Answer() for _ in range(4))
    topic_name = PROBE_TOPIC + secrets.token_hex(8)
    client = mqtt.Client(CallbackAPIVersion.VERSION2, f"mqlake-doctor-{secrets.token_hex(4)}")
    if username is not None:
        client.username_pw_set(username, password)
    client.on_connect = connected
    client.on_subscribe = subscribed
    client.on_publish = accepted
    client.on_message = delivered
    client.connect_timeout = ANSWER_SECONDS
    client.connect(gateway.host, gateway.port)
    client.loop_start()
    try:
        _, _, _, reason_code, _ = connected.wait("CONNACK")
        if reason_code.is_failure:
            problem = str(reason_code)
            if problem in _NOT_AUTHORIZED:
                raise PermissionError(problem)
            raise OperationalError(f"it refuses the connection: {problem}")
        client.subscribe(topic_name, 1)
        subscribed.wait("SUBACK (is the router running?)")
        begin = time.monotonic()
        client.publish(topic_name, b"doctor", 1)
        accepted.wait("PUBACK (does the log take records?)")
        delivered.wait("the message itself (does the router route?)")
    finally:
        client.disconnect()
        client.loop_stop()
    return accepted.at - begin, delivered.at - begin


class _Answer:
    """An answer of a gateway, heard in the thread of the client."""

    def __init__(self) -> None:
        self.at = 0.0
        self._has_come = threading.Event()
        self._arguments: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> None:
        self.at, self._arguments = time.monotonic(), arguments
        self._has_come.set()

    def wait(self, what: str) -> tuple[Any, ...]:
        """Return the arguments with which it came."""
        if not self._has_come.wait(ANSWER_SECONDS):
            raise OperationalError(f"no answer within {ANSWER_SECONDS:g} s, expected {what}")
        return self._arguments


def ask(patient: Patient, path: str, token: str) -> Any:
    """Return the answer of the API.

    Raises:
        OSError: It does not, or not well.
    """
    url = f"{patient.running.api_url}/api/v1{path}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310
    context = api_context(patient.running)
    with urllib.request.urlopen(  # noqa: S310
        request, timeout=ANSWER_SECONDS, context=context
    ) as answer:
        return json.load(answer)


def _detail(problem: str) -> str:
    try:
        found = json.loads(problem)
    except ValueError:
        return problem[:200]
    return str(found.get("detail", problem)) if isinstance(found, dict) else problem[:200]
