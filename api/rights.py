"""Rights for all gateways: records of `mqlake.gateways`, followed and written."""

import threading
from typing import Final

from api.log import LogAppender
from mqlake.clock import Clock
from mqlake.errors import MqlakeError
from mqlake.log.blocking import Append
from mqlake.log.contract import ANY_PARTITION
from mqlake.records import GATEWAYS, RIGHTS_KEY
from mqlake.rights.applied import (
    AppliedRights,
    decode_rights,
    encode_rights,
    rights_version_key,
    rights_version_of,
)
from mqlake.rights.model import RightsFile

KEPT_VERSIONS: Final = 20
MAX_BYTES: Final = 1024 * 1024
"""Of a version: each gateway reads all of them when it starts."""


class RightsChanged(MqlakeError):  # noqa: N818 - it names what is in the way
    """Somebody else has applied others meanwhile."""


class RightsTooLarge(MqlakeError):  # noqa: N818
    """They are more than the log takes."""


class MaterialisedRights:
    """The rights as the log has them; safe to use from any thread.

    Attributes:
        is_complete: Whether all have been read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: AppliedRights | None = None
        self._versions: dict[int, AppliedRights] = {}
        self.is_complete = False

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self.is_complete = False
            self._current = None
            self._versions.clear()

    def take(self, key: bytes, value: bytes | None) -> None:
        """Take a record of `mqlake.gateways`; what is no rights is passed over.

        Raises:
            InvalidRecord: It is of another form.
        """
        number = rights_version_of(key)
        if number is None and key != RIGHTS_KEY:
            return
        rights = None if value is None else decode_rights(value)
        with self._lock:
            if number is None:
                self._current = rights
            elif rights is None:
                self._versions.pop(number, None)
            else:
                self._versions[number] = rights

    def complete(self) -> None:
        self.is_complete = True

    @property
    def current(self) -> AppliedRights | None:
        """Those in force; None: none were applied, each gateway goes by its file."""
        return self._current

    def versions(self) -> list[AppliedRights]:
        """Return those that were in force and are kept, the newest first."""
        with self._lock:
            last = 0 if self._current is None else self._current.version
            return [one for number, one in sorted(self._versions.items())[::-1] if number <= last]


class RightsChanges:
    """Applies rights; safe to use from any thread.

    Args:
        log: Where they are written.
        view: Takes at once what is written.
        clock: Says when they were applied.
    """

    def __init__(self, log: LogAppender, view: MaterialisedRights, clock: Clock) -> None:
        self._log = log
        self._view = view
        self._clock = clock
        self._lock = threading.Lock()

    def apply(self, rights: RightsFile, by: str, version: int | None) -> AppliedRights:
        """Put rights in force at all gateways, as a new version unless they are so already.

        Args:
            rights: All of them.
            by: Who does it.
            version: That is in force, 0: none; None: whichever it is.

        Raises:
            RightsChanged: Another version is in force.
            RightsTooLarge: They are more than the log takes.
            LogError: The log does not answer.
        """
        with self._lock:
            current = self._view.current
            number = 0 if current is None else current.version
            if version is not None and version != number:
                raise RightsChanged(f"version {number} is in force, not {version}: plan again")
            if current is not None and current.content == rights:
                return current
            applied = AppliedRights(
                roles=rights.roles,
                rules=rights.rules,
                version=number + 1,
                at=self._clock.now_ms(),
                by=by,
            )
            value = encode_rights(applied)
            if len(value) > MAX_BYTES:
                raise RightsTooLarge(
                    f"these rights have {len(value)} bytes, expected at most {MAX_BYTES}: say more "
                    "with roles, %u and %c, or use rights_file"
                )
            records: list[tuple[bytes, bytes | None]] = [
                (rights_version_key(applied.version), value),
                (RIGHTS_KEY, value),
            ]
            if applied.version > KEPT_VERSIONS:
                records.append((rights_version_key(applied.version - KEPT_VERSIONS), None))
            appends = [Append(ANY_PARTITION, key, value, []) for key, value in records]
            self._log.append_all(GATEWAYS, appends, what="rights")
            for key, taken in records:
                self._view.take(key, taken)
        return applied
