"""A gateway's tree of subscriptions alone: subscribers of a message, also while clients subscribe.

The processor's time of this thread, so that other work of the machine counts little.
"""

import time
from random import Random
from typing import Final

from bench.results.figures import Figures, figure
from ingest.session.subscriptions import ClientSubscription, Subscriptions

SUBSCRIPTIONS: Final = 10_000
TOPICS: Final = 1_000
MESSAGES: Final = 40_000
CHANGE_EVERY: Final = 10
"""Messages between two changes, each a client that subscribes and one that goes."""


class _Client:
    has_room = True
    is_full = False

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id


def measure_gateway_match() -> Figures:
    """Measure the look-up of a message's subscribers: 1,000 topics, 10,000 subscriptions.

    One in ten of them has `+`; clients that come and go have filters of their own, or with `#`.
    """
    tree: Subscriptions[_Client] = Subscriptions()
    for number in range(SUBSCRIPTIONS):
        level = "temperature" if number % 10 else "+"
        _add(tree, number, f"{_device(number)}/{level}")
    topics = [f"{_device(number)}/temperature" for number in range(TOPICS)]
    chosen = Random(7).choices(topics, k=MESSAGES)  # noqa: S311 - no secret
    begin = time.thread_time()
    for topic in topics:
        tree.copies("t", topic, 0, 1, "")
    fresh = (time.thread_time() - begin) / TOPICS
    known, _ = _match(tree, chosen, "")
    beside_literal, literal = _match(tree, chosen, "client-{}/answers")
    beside_wild, wild = _match(tree, chosen, "client-{}/#")
    return {
        figure(f"gateway's tree, 10,000 subscriptions, {name}", "us"): seconds * 1e6
        for name, seconds in {
            "match of a topic seen before": known,
            "match of a new topic": fresh,
            "match while others subscribe": beside_literal,
            "match while others subscribe with #": beside_wild,
            "subscribe": literal,
            "subscribe with #": wild,
        }.items()
    }


def _device(number: int) -> str:
    return f"site-{number % 50}/line-{number // 50 % 20}/device-{number % TOPICS}"


def _add(
    tree: Subscriptions[_Client], number: int, topic_filter: str
) -> ClientSubscription[_Client]:
    subscription = ClientSubscription(_Client(f"client-{number}"), topic_filter, 1)
    tree.add("t", subscription)
    return subscription


def _match(tree: Subscriptions[_Client], topics: list[str], changed: str) -> tuple[float, float]:
    """Return the seconds of a match, and of a change; of none when nothing is changed."""
    spent, changes = 0.0, 0
    begin = time.thread_time()
    for number, topic in enumerate(topics):
        tree.copies("t", topic, 0, 1, "")
        if changed and number % CHANGE_EVERY == 0:
            at = time.thread_time()
            tree.remove("t", _add(tree, number, changed.format(number)))
            spent += time.thread_time() - at
            changes += 2
    matching = time.thread_time() - begin - spent
    return matching / len(topics), spent / max(changes, 1)
