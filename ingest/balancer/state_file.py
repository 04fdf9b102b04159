"""The last good snapshot on disk, so that a start begins with the state of the proxies."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest.balancer.snapshot import Snapshot
from mqlake.errors import InvalidRecord

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Remembered:
    """State that a control plane takes over from the one before."""

    snapshot: Snapshot = Snapshot()  # noqa: RUF009 - frozen
    draining: frozenset[str] = frozenset()
    """Nodes that an operator has drained."""


def load_state(path: Path) -> Remembered:
    """Return the remembered state; an empty one without a file that can be read."""
    try:
        found = json.loads(path.read_bytes())
        snapshot = Snapshot.decode(json.dumps(found["snapshot"]).encode())
        return Remembered(snapshot, frozenset(map(str, found["draining"])))
    except FileNotFoundError:
        return Remembered()
    except (OSError, ValueError, KeyError, TypeError, InvalidRecord) as exc:
        fields = {"file": str(path), "reason": str(exc)}
        logger.warning("last snapshot not read", extra={"fields": fields})
        return Remembered()


def encode_state(remembered: Remembered) -> bytes:
    snapshot = json.loads(remembered.snapshot.encode())
    members = {"snapshot": snapshot, "draining": sorted(remembered.draining)}
    return json.dumps(members, indent=1).encode()
