"""The usual work of a broker, all of it at once, for faults at chosen moments.

Each QoS has two publishers, a subscriber that stays and one that is away for a while; QoS 2 goes to
a share group too; retained values change while new subscriptions ask for them; idle clients leave
wills. A scenario strikes when `qos-1-pub-0` has a given number of its 800 messages acknowledged.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from resilience.drivers.frames import WillOptions
from resilience.plan import ClientPlan, RunPlan, Step
from resilience.workload import identity, step

MESSAGES: Final = 800
"""Messages of each publisher; they take 16 s."""
PER_SECOND: Final = 50.0
AWAY_FROM, AWAY_UNTIL = 320, 520
"""A subscriber is away while its first publisher has these acknowledged. Meanwhile at most 800
messages come for it: brokers keep as little as 1,000."""

WINDOWS: Final = {1: 1, 2: 8}
"""Messages of a publisher under way, by QoS. Those of QoS 1 that a dead node leaves unacknowledged
come twice."""

MEMBERS: Final = 4
"""Members of the share group."""
VALUES: Final = 320
TOPICS: Final = 5
"""With a retained value each."""
LOOKS: Final = 12
"""Subscriptions to the retained values, one after the other; half as many stay."""

WILLS: Final = 12
WILL_AWAY_SECONDS: Final = 15.0
"""So long every second client with a will stays away; the others come back at once."""
KEEP_ALIVE_SECONDS: Final = 8
"""A connection that brings nothing is given up after one to two of these."""


def mixed(rng: random.Random, nodes: Sequence[str], promises: Mapping[str, Any]) -> RunPlan:
    """Return the clients; the seed draws their protocol levels and their ways."""
    clients = [*_flow(rng, 1), *_flow(rng, 2), *_kept(rng), *_wills(rng)]
    if promises.get("shared_subscriptions", True):
        clients += _group(rng)
    return RunPlan(tuple(clients))


def _client(rng: random.Random, name: str, steps: Sequence[Step], **more: Any) -> ClientPlan:
    who = {**identity(rng, persistent=more.pop("persistent", True)), **more}
    return ClientPlan(name, tuple(steps), node="*", keep_alive=KEEP_ALIVE_SECONDS, **who)


def _flow(rng: random.Random, qos: int) -> list[ClientPlan]:
    kind = f"qos-{qos}"
    subscribe = [step("connect"), step("subscribe", filter=f"{kind}/#", qos=qos)]
    first = f"{kind}-pub-0"
    leave = [
        step("wait", client=first, count=AWAY_FROM),
        step(rng.choice(("disconnect", "abort"))),
        step("wait", client=first, count=AWAY_UNTIL),
        step("connect"),
    ]
    publishers = [
        _client(
            rng,
            f"{kind}-pub-{number}",
            (
                step("connect"),
                step("wait", client=f"{kind}-stays", subscribed=1),
                step("wait", client=f"{kind}-leaves", subscribed=1),
                step(
                    "publish",
                    topic=f"{kind}/{number}",
                    topics=2,
                    qos=qos,
                    count=MESSAGES,
                    window=WINDOWS[qos],
                    rate=PER_SECOND,
                    size=100,
                ),
            ),
        )
        for number in range(2)
    ]
    stays = _client(rng, f"{kind}-stays", subscribe)
    return [*publishers, stays, _client(rng, f"{kind}-leaves", subscribe + leave)]


def _group(rng: random.Random) -> list[ClientPlan]:
    names = [f"member-{number}" for number in range(MEMBERS)]
    members = [
        _client(rng, name, (step("connect"), step("subscribe", filter="$share/g/jobs/#", qos=2)))
        for name in names
    ]
    steps = [step("connect"), *(step("wait", client=name, subscribed=1) for name in names)]
    steps.append(step("publish", topic="jobs/x", qos=2, count=MESSAGES, window=8, rate=PER_SECOND))
    return [*members, _client(rng, "jobs-pub", steps)]


def _kept(rng: random.Random) -> list[ClientPlan]:
    """Return a publisher of retained values, and clients that subscribe to them in between."""
    look = step("subscribe", filter="kept/#", qos=1)
    publish = step(
        "publish",
        topic="kept",
        topics=TOPICS,
        qos=1,
        retain=True,
        count=VALUES,
        rate=PER_SECOND * VALUES / MESSAGES,
    )
    steps = [step("wait", client="kept-pub", count=TOPICS)]
    for _ in range(LOOKS):
        pause = step("wait", seconds=round(rng.uniform(0.3, 1.0), 3))
        steps += [step("connect"), look, pause, step("disconnect")]
    steps += [step("wait", client="kept-pub", done=True), step("connect"), look]
    clients = [
        _client(rng, "kept-pub", (step("connect"), publish)),
        _client(rng, "kept-looks", steps, persistent=False),
    ]
    for number in range(LOOKS // 2):
        moment = step("wait", client="kept-pub", count=(number + 1) * VALUES // (LOOKS // 2 + 1))
        steps = [moment, step("connect"), look]
        clients.append(_client(rng, f"kept-stays-{number}", steps))
    return clients


def _wills(rng: random.Random) -> list[ClientPlan]:
    """Return clients that are there until the end, and an observer of their wills.

    They publish now and then: a will that comes meanwhile is one of a client that is served.
    """
    watch = (step("connect"), step("subscribe", filter="will/#", qos=1))
    clients = [_client(rng, "will-observer", watch)]
    for number in range(WILLS):
        steps = (
            step("wait", client="will-observer", subscribed=1),
            step("connect"),
            step("publish", topic=f"alive/{number}", qos=1, count=40, rate=2.0),
        )
        away = WILL_AWAY_SECONDS if number % 2 else 0.0
        will = WillOptions(f"will/{number}")
        clients.append(_client(rng, f"will-{number}", steps, will=will, away_seconds=away))
    return clients
