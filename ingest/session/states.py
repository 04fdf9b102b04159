"""The states of a session at the gateway to which its client is connected.

    connecting ──► claimed ──► saved ──────────────────────────────► live ──► leaving
                                 │                                    ▲          │
                                 └──► routing ──► catching up ────────┘          ▼
                                                                   stored, or ended

*Connecting*: a client has sent CONNECT and may have a session; its claim is on its way through its
shard. *Claimed*: this gateway holds the session. Nothing that it does before the log has it may be
seen by anybody. *Saved*: the log has the session as it is now, in a record of it or in the claim,
and then the record is on its way; so CONNACK tells the truth in any event. A session that is new,
or of which neither subscriptions nor exchanges are stored, is live at once: it has missed nothing.
Any other has its filters routed first (*routing*): from some offset on the router brings its
messages. Those before are read (*catching up*), and at exactly the offset where reading stopped its
subscriptions come into force (*live*); only then is the client heard.

The connection may end in each of these states. A session that ends with it has *ended*: late
messages and answers for it are ignored. One that outlives it is *leaving* while the log has not
answered for its QoS 2 messages, for the next holder would learn wrongly of them; then it is
*stored*, and the next gateway to claim it has it. A session that others have settled, because this
gateway was cut off, has ended here, from any state.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class SessionState(Enum):
    """States of a session."""

    CONNECTING = auto()
    CLAIMED = auto()
    SAVED = auto()
    ROUTING = auto()
    CATCHING_UP = auto()
    LIVE = auto()
    LEAVING = auto()
    STORED = auto()
    ENDED = auto()

    __hash__ = object.__hash__  # by identity: that of `Enum` is a call for each look-up


OVER: Final = frozenset({SessionState.STORED, SessionState.ENDED})
"""Nothing is delivered to it here any more."""

IN_FORCE: Final = frozenset({SessionState.LIVE, SessionState.LEAVING})
"""Its subscriptions are in the tree, those left out that get their history first."""

ROUTED: Final = frozenset({SessionState.CATCHING_UP, *IN_FORCE})
"""Each of its subscriptions is counted as a member of its route."""

TRANSITIONS: Final[Mapping[SessionState, frozenset[SessionState]]] = {
    SessionState.CONNECTING: frozenset({SessionState.CLAIMED}),
    SessionState.CLAIMED: frozenset({SessionState.SAVED, *OVER}),
    SessionState.SAVED: frozenset({SessionState.ROUTING, SessionState.LIVE, *OVER}),
    SessionState.ROUTING: frozenset({SessionState.CATCHING_UP, *OVER}),
    SessionState.CATCHING_UP: frozenset({SessionState.LIVE, *OVER}),
    SessionState.LIVE: frozenset({SessionState.LEAVING, *OVER}),
    SessionState.LEAVING: OVER,
    SessionState.STORED: frozenset(),
    SessionState.ENDED: frozenset(),
}


def step(state: SessionState, to: SessionState) -> SessionState:
    """Return the next state. Anything else than the table has is a bug, and fails."""
    assert to in TRANSITIONS[state], f"a session that is {state.name} cannot be {to.name}"
    return to
