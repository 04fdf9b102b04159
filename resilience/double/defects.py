"""The defects that the double can have, and which checker has to find each.

A defect strikes now and then, as real ones do: `chance` is how often of the times it could.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Defect:
    """One planted defect.

    Attributes:
        found_by: The checker and the kind of its violation.
        scenario: The one in which it shows itself; empty: in the random workload.
    """

    text: str
    found_by: tuple[str, str]
    chance: float = 1.0
    scenario: str = ""


DEFECTS: Final[dict[str, Defect]] = {
    "drop": Defect("a message for one subscriber is dropped", ("lost", "lost"), 0.03),
    "forget-on-crash": Defect("a crash loses what was not delivered", ("lost", "lost")),
    "queue-limit": Defect("an absent client's queue is cut at 3, silently", ("lost", "lost")),
    "mute-publish": Defect("a PUBLISH is not answered", ("never-acknowledged", "publish"), 0.05),
    "mute-subscribe": Defect(
        "a SUBSCRIBE is not answered", ("never-acknowledged", "subscribe"), 0.2
    ),
    "mute-unsubscribe": Defect(
        "an UNSUBSCRIBE is not answered", ("never-acknowledged", "unsubscribe"), 0.5
    ),
    "invent": Defect("a message comes that no client sent", ("phantom", "never sent"), 0.03),
    "damage": Defect("a payload is cut short", ("phantom", "damaged"), 0.03),
    "other-topic": Defect("a message comes on another topic", ("phantom", "another topic"), 0.03),
    "unasked": Defect(
        "a client gets what it has not asked for", ("phantom", "not subscribed"), 0.1
    ),
    "double-qos2": Defect("QoS 2 is delivered twice", ("duplicate-qos2", "doubled"), 0.1),
    "forget-pubrec": Defect(
        "a PUBLISH of QoS 2 that is sent again is taken for a new one",
        ("duplicate-qos2", "doubled"),
    ),
    "no-dup": Defect("repetitions have no DUP flag", ("duplicate-without-dup", "repeated")),
    "double-qos0": Defect(
        "QoS 0 is delivered twice", ("duplicate-without-dup", "QoS 0 repeated"), 0.1
    ),
    "dup-qos0": Defect("DUP is set in QoS 0", ("duplicate-without-dup", "DUP of QoS 0"), 0.1),
    "swap": Defect("a message overtakes the one before", ("order", "first arrival"), 0.1),
    "resume-backwards": Defect(
        "what is sent again comes in another order", ("order", "repeated in another order")
    ),
    "early-suback": Defect(
        "SUBACK goes out before other nodes know", ("suback-not-routed", "not routed")
    ),
    "retained-lost": Defect("a retained message is not kept", ("retained", "lost"), 0.4),
    "retained-stays": Defect("a retained message is not deleted", ("retained", "resurrected"), 0.7),
    "retained-old": Defect(
        "a subscription gets the retained message before the last", ("retained", "back in time")
    ),
    "will-missing": Defect("a will is not published", ("will", "missing"), 0.5),
    "will-doubled": Defect("a will is published twice", ("will", "doubled"), 0.5),
    "will-early": Defect("the will delay is not kept", ("will", "too early")),
    "will-after-disconnect": Defect(
        "DISCONNECT does not delete the will", ("will", "after DISCONNECT")
    ),
    "will-of-served": Defect(
        "a client's will is published while it is served", ("will", "of a served client"), 0.1
    ),
    "session-lie": Defect(
        "CONNACK tells of a session that is not", ("session-present", "session out of nothing"), 0.3
    ),
    "session-forgotten": Defect(
        "a stored session is gone", ("session-present", "session gone"), 0.3
    ),
    "expired": Defect("message expiry is not looked at", ("expired", "expired")),
    "ignored-unsubscribe": Defect(
        "UNSUBSCRIBE is answered and not done", ("after-unsuback", "delivered")
    ),
    "share-none": Defect("a shared message reaches no member", ("share-group", "none"), 0.1),
    "share-two": Defect("a shared message reaches two members", ("share-group", "two"), 0.2),
    "share-dead": Defect("a group keeps a member that has left", ("share-group", "dead member")),
    "share-gone": Defect(
        "what a dead node was given for a group goes while it is away",
        ("share-group", "none"),
        scenario="deliveries-gone",
    ),
    "full-acknowledged": Defect(
        "messages for which there is no room are acknowledged",
        ("lost", "lost"),
        scenario="full-log",
    ),
    "frozen-will": Defect(
        "a node that was frozen serves on clients whose wills others have published",
        ("will", "of a served client"),
        scenario="freeze",
    ),
    "frozen-suback": Defect(
        "a node that was frozen acknowledges subscriptions that no client has",
        ("lost", "lost"),
        scenario="freeze",
    ),
    "frozen-qos2": Defect(
        "a node that was frozen stores a message of QoS 2 that another one has stored",
        ("duplicate-qos2", "doubled"),
        scenario="freeze",
    ),
    "no-takeover": Defect(
        "the first connection of a client identifier stays", ("two-holders", "both served")
    ),
    "over-window": Defect("Receive Maximum is passed over", ("receive-maximum", "too many")),
    "same-packet-id": Defect("a packet identifier is given twice", ("packet-id", "reused"), 0.3),
    "tenant": Defect("tenants see each other", ("crossing", "tenant")),
    "ignored-tenant": Defect("a tenant that is shut is served on", ("crossing", "tenant shut")),
    "ignored-rights-subscribe": Defect(
        "a subscription outlives the right to it", ("crossing", "right to subscribe")
    ),
    "ignored-rights-publish": Defect(
        "a client publishes on without the right", ("crossing", "right to publish")
    ),
}
