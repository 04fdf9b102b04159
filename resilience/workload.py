"""A random workload of features that the checkers look at: one group of clients for each feature.

The same plan runs against the double in virtual time and against a broker in real time. A group
lasts about ten seconds.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from resilience.drivers.frames import WillOptions
from resilience.plan import ClientPlan, RunPlan, Step

Steps = list[Step]


def step(do: str, **args: Any) -> Step:
    return Step(do, args)


def identity(rng: random.Random, *, persistent: bool) -> dict[str, Any]:
    """Draw a protocol level, and how that says that a session is kept or not."""
    if rng.random() < 0.5:
        return {"version": 4, "clean": not persistent}
    expiry = rng.choice((600, 0xFFFF_FFFF)) if persistent else 0
    return {"version": 5, "clean": not persistent, "expiry": expiry}


def _pauses(rng: random.Random, longest: float) -> Step:
    return step("wait", seconds=round(rng.uniform(0.0, longest), 3))


def _burst(rng: random.Random, topic: str) -> Step:
    return step(
        "publish",
        topic=topic,
        topics=rng.choice((1, 2)),
        qos=rng.choice((0, 1, 1, 2, 2)),
        count=rng.randint(3, 12),
        window=rng.choice((1, 1, 8)),
        rate=rng.choice((20.0, 10.0)),
        size=rng.choice((0, 100)),
    )


def flow(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """Publishers of every QoS; a subscriber that stays, and one that leaves and comes back."""
    clients = []
    for number in range(rng.randint(1, 3)):
        steps = [step("connect"), step("wait", seconds=0.5)]
        steps += [_burst(rng, f"flow/{number}") for _ in range(rng.randint(1, 3))]
        who = identity(rng, persistent=rng.random() < 0.7)
        clients.append(ClientPlan(f"flow-pub-{number}", tuple(steps), node="*", **who))
    for name in ("stays", "leaves"):
        who = identity(rng, persistent=True)
        if who["version"] == 5:
            who["receive_maximum"] = rng.choice((1, 3, 65_535))
        steps = [step("connect"), step("subscribe", filter="flow/#", qos=rng.choice((1, 2, 2)))]
        if name == "leaves":
            steps += [
                _pauses(rng, 1.0),
                step(rng.choice(("disconnect", "abort"))),
                step("wait", seconds=round(rng.uniform(0.5, 3), 3)),
                step("connect"),
                _pauses(rng, 1.0),
                step("abort"),
                step("connect"),
            ]
        hold = rng.choice((0.0, 0.05))
        clients.append(ClientPlan(f"flow-{name}", tuple(steps), node="*", hold_seconds=hold, **who))
    return clients


def resends(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """A publisher with much under way, which has to send it again when its connection breaks."""
    publisher = ClientPlan(
        "again-pub",
        (
            step("connect"),
            step("wait", seconds=0.3),
            step("publish", topic="again/x", qos=2, count=80, rate=30.0, window=8),
            step("publish", topic="again/x", qos=1, count=20, rate=30.0, window=8),
        ),
        node="*",
        **identity(rng, persistent=True),
    )
    subscriber = ClientPlan(
        "again-sub",
        (step("connect"), step("subscribe", filter="again/#", qos=2)),
        node="*",
        **identity(rng, persistent=True),
    )
    return [publisher, subscriber]


def retained(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """A writer of retained messages, and a reader that subscribes again and again."""
    writes = [step("connect")]
    for _ in range(rng.randint(4, 8)):
        topic = f"state/{rng.randint(0, 2)}"
        empty = rng.random() < 0.35
        writes.append(
            step("publish", topic=topic, qos=rng.choice((1, 2)), retain=True, empty=empty)
        )
        writes.append(step("wait", seconds=round(rng.uniform(0.1, 1.0), 3)))
    writer = ClientPlan("state-pub", tuple(writes), node="*", **identity(rng, persistent=True))
    reads: Steps = []
    for _ in range(3):
        _add(reads, step("connect"), step("subscribe", filter="state/+", qos=1))
        _add(reads, _pauses(rng, 1.5), step("disconnect"), _pauses(rng, 1.0))
    _add(reads, step("wait", client="state-pub", done=True), step("connect"))
    _add(reads, step("subscribe", filter="state/+", qos=1))
    reader = ClientPlan("state-sub", tuple(reads), node="*", **identity(rng, persistent=False))
    return [writer, reader]


def _add(steps: Steps, *more: Step) -> None:
    steps.extend(more)


def wills(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """Clients with wills that break, leave, come back, or are served all the time."""
    observer = ClientPlan(
        "will-observer",
        (step("connect"), step("subscribe", filter="will/#", qos=2)),
        node="*",
        **identity(rng, persistent=True),
    )
    clients = [observer]
    for number in range(4):
        who = identity(rng, persistent=rng.random() < 0.5)
        # At least as long as the clock of a checker is inexact.
        delay = rng.choice((0, 3)) if who["version"] == 5 and who["expiry"] else 0
        will = WillOptions(f"will/{number}", qos=rng.choice((1, 2)), delay=delay)
        steps = [step("wait", seconds=0.5), step("connect")]
        fate = rng.choice(("abort", "abort", "disconnect", "return", "serve"))
        if fate == "serve":
            steps.append(step("publish", topic=f"alive/{number}", qos=1, count=10, rate=4.0))
        else:
            _add(steps, _pauses(rng, 1.0), step("disconnect" if fate == "disconnect" else "abort"))
        if fate == "return":
            _add(steps, _pauses(rng, 6.0), step("connect"))
        clients.append(ClientPlan(f"will-{number}", tuple(steps), node="*", will=will, **who))
    return clients


def shares(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """A share group, one of whose members leaves."""
    clients = []
    for number in range(3):
        persistent = rng.random() < 0.5
        who = identity(rng, persistent=persistent)
        steps = [step("connect"), step("subscribe", filter="$share/g/jobs/#", qos=2)]
        if number == 0 and rng.random() < 0.5:
            steps.append(step("wait", seconds=round(rng.uniform(0.5, 1.5), 3)))
            leave = step("unsubscribe", filter="$share/g/jobs/#")
            _add(steps, leave if persistent else rng.choice((leave, step("disconnect"))))
        clients.append(ClientPlan(f"worker-{number}", tuple(steps), node="*", **who))
    steps = [step("connect"), step("wait", seconds=0.5)]
    qos = rng.choice((1, 2))
    steps.append(step("publish", topic="jobs/x", qos=qos, count=25, rate=10.0, window=2))
    clients.append(ClientPlan("jobs-pub", tuple(steps), node="*", **identity(rng, persistent=True)))
    return clients


def expiry(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """Messages that expire while their subscriber is away."""
    subscriber = ClientPlan(
        "late-sub",
        (
            step("connect"),
            step("subscribe", filter="late/#", qos=1),
            step("disconnect"),
            step("wait", seconds=8.0),
            step("connect"),
        ),
        node="*",
        **identity(rng, persistent=True),
    )
    publisher = ClientPlan(
        "late-pub",
        (
            step("connect"),
            step("wait", seconds=0.8),
            step(
                "publish", topic="late/x", qos=1, count=5, expiry=rng.choice((1, 3, 60)), rate=10.0
            ),
            step("publish", topic="late/x", qos=1, count=2),
        ),
        node="*",
        version=5,
        clean=False,
        expiry=600,
    )
    return [subscriber, publisher]


def unsubscribing(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """A client that subscribes and unsubscribes while messages come."""
    steps = [step("connect")]
    for _ in range(3):
        _add(steps, step("subscribe", filter="turn/+", qos=rng.choice((0, 1, 2))))
        _add(steps, _pauses(rng, 0.8), step("unsubscribe", filter="turn/+"), _pauses(rng, 0.8))
    subscriber = ClientPlan("turn-sub", tuple(steps), node="*", **identity(rng, persistent=True))
    publisher = ClientPlan(
        "turn-pub",
        (
            step("connect"),
            step("publish", topic="turn/x", qos=rng.choice((0, 1)), count=40, rate=10.0, window=4),
        ),
        node="*",
        **identity(rng, persistent=True),
    )
    return [subscriber, publisher]


def takeover(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """Two programs with one client identifier; the first goes on as if nothing were."""
    who = identity(rng, persistent=True)
    first = ClientPlan(
        "twin-a",
        (
            step("connect"),
            step("subscribe", filter="twin/#", qos=1),
            step("publish", topic="twin-a", qos=1, count=20, rate=10.0, window=30),
        ),
        client_id="twin",
        node="*",
        reconnect=False,
        **who,
    )
    second = ClientPlan(
        "twin-b",
        (step("wait", seconds=round(rng.uniform(0.4, 1.2), 3)), step("connect")),
        client_id="twin",
        node="*",
        reconnect=False,
        **who,
    )
    publisher = ClientPlan(
        "twin-pub",
        (step("connect"), step("publish", topic="twin/x", qos=1, count=20, rate=10.0)),
        node="*",
        **identity(rng, persistent=False),
    )
    return [first, second, publisher]


def sessions(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """A client that keeps its session, and drops it, by turns."""
    steps: Steps = []
    for _ in range(5):
        clean = rng.random() < 0.4
        _add(steps, step("connect", clean=clean), step("subscribe", filter="keep/#", qos=1))
        _add(steps, _pauses(rng, 0.5), step(rng.choice(("disconnect", "abort"))))
        _add(steps, _pauses(rng, 3.0))
    steps.append(step("connect", clean=False))
    who: dict[str, Any] = {"version": 5, "expiry": 600} if rng.random() < 0.5 else {"version": 4}
    return [ClientPlan("keep", tuple(steps), node="*", **who)]


def routes(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """Subscriptions at one node, messages from another one right after SUBACK."""
    clients = []
    for number in range(3):
        near, far = rng.sample(nodes, 2) if len(nodes) > 1 else (nodes[0], nodes[0])
        name = f"route-sub-{number}"
        subscribe = step("subscribe", filter=f"route/{number}", qos=rng.choice((0, 1)))
        clients.append(
            ClientPlan(
                name,
                (step("connect"), subscribe),
                node=near,
                **identity(rng, persistent=True),
            )
        )
        publish = step("publish", topic=f"route/{number}", qos=1, count=4, window=2)
        steps = (step("connect"), step("wait", client=name, done=True), publish)
        clients.append(
            ClientPlan(f"route-pub-{number}", steps, node=far, **identity(rng, persistent=True))
        )
    return clients


def tenants(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """The same topics in two tenants; one of these is shut for a while."""
    clients = []
    for tenant in ("red", "blue"):
        clients.append(
            ClientPlan(
                f"{tenant}-sub",
                (step("connect"), step("subscribe", filter="#", qos=1)),
                node="*",
                tenant=tenant,
                **identity(rng, persistent=True),
            )
        )
        steps = (
            step("connect"),
            step("wait", seconds=0.5),
            step("publish", topic="same/x", qos=1, count=20, rate=10.0),
        )
        clients.append(ClientPlan(f"{tenant}-pub", steps, node="*", tenant=tenant))
    operator = (
        step("wait", seconds=1.0),
        step("tenant", tenant="red", is_open=False),
        step("wait", seconds=1.0),
        step("tenant", tenant="red", is_open=True),
    )
    return [*clients, ClientPlan("operator", operator)]


def rights(rng: random.Random, nodes: Sequence[str]) -> list[ClientPlan]:
    """Rights that are taken away while messages come, and given back."""
    action = rng.choice(("publish", "subscribe"))
    client = "right-pub" if action == "publish" else "right-sub"
    subscriber = ClientPlan(
        "right-sub",
        (step("connect"), step("subscribe", filter="right/#", qos=1)),
        node="*",
        **identity(rng, persistent=True),
    )
    publisher = ClientPlan(
        "right-pub",
        (step("connect"), step("publish", topic="right/x", qos=1, count=30, rate=10.0, window=4)),
        node="*",
        **identity(rng, persistent=True),
    )
    change = {"client_id": client, "action": action, "filter": "right/#"}
    admin = ClientPlan(
        "admin",
        (
            step("wait", seconds=1.0),
            step("rights", **change, allowed=False),
            step("wait", seconds=1.0),
            step("rights", **change, allowed=True),
        ),
    )
    return [subscriber, publisher, admin]


GROUPS: Final[dict[str, Callable[[random.Random, Sequence[str]], list[ClientPlan]]]] = {
    "flow": flow,
    "resends": resends,
    "retained": retained,
    "wills": wills,
    "shares": shares,
    "expiry": expiry,
    "unsubscribing": unsubscribing,
    "takeover": takeover,
    "sessions": sessions,
    "routes": routes,
    "tenants": tenants,
    "rights": rights,
}
NEEDS: Final = {
    "shares": "shared_subscriptions",
    "routes": "cluster",
    "tenants": "tenants",
    "rights": "rights",
}
"""Groups that only a target with this promise can be put to."""


def some_features(rng: random.Random, nodes: Sequence[str], promises: Mapping[str, Any]) -> RunPlan:
    """Draw a plan of the groups that a target with these promises can be put to."""
    given = {"shared_subscriptions": True, **promises}
    groups = [group for group in GROUPS if group not in NEEDS or given.get(NEEDS[group])]
    return features(rng, nodes, groups, 0.6)


def features(
    rng: random.Random, nodes: Sequence[str], groups: Collection[str], share: float = 1.0
) -> RunPlan:
    """Draw a plan of these groups, each with the probability `share`, at least of one."""
    chosen = [group for group in GROUPS if group in groups and rng.random() < share]
    chosen = chosen or [rng.choice(sorted(groups))]
    clients = [client for group in chosen for client in GROUPS[group](rng, nodes)]
    return RunPlan(tuple(clients))
