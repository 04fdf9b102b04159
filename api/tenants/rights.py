"""Rights for all gateways: records of `mqlake.gateways`, followed and written."""

from typing import Final

from api.log.materialised import MaterialisedView
from api.log.repository import RecordKind, Repository
from mqlake.errors import MqlakeError
from mqlake.records.messages import GATEWAYS, RIGHTS_KEY
from mqlake.records.rule_facts import keep
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
"""Size of a version: each gateway reads all of them when it starts."""


class RightsChanged(MqlakeError):  # noqa: N818 - it names the obstacle
    """Another caller has applied others meanwhile."""


class RightsTooLarge(MqlakeError):  # noqa: N818
    """They are more than the log takes."""


class MaterialisedRights(MaterialisedView):
    """The rights as the log has them."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._current: AppliedRights | None = None
        self._versions: dict[int, AppliedRights] = {}

    def _take(self, data: bytes, value: bytes | None) -> None:
        number = rights_version_of(data)
        if number is None and data != RIGHTS_KEY:
            return
        rights = None if value is None else decode_rights(value)
        if number is None:
            self._current = rights
        else:
            keep(self._versions, number, rights)

    @property
    def current(self) -> AppliedRights | None:
        """Those in force; None: none were applied, each gateway goes by its file."""
        return self._current

    def versions(self) -> list[AppliedRights]:
        """Return those that were in force and are kept, the newest first."""
        with self._changed:
            last = 0 if self._current is None else self._current.version
            return [one for number, one in sorted(self._versions.items())[::-1] if number <= last]


def _key(version: int | None) -> bytes:
    return RIGHTS_KEY if version is None else rights_version_key(version)


class RightsChanges(Repository[int | None, AppliedRights, MaterialisedRights]):
    """Applies rights; a record is found by its version, the one in force by None."""

    kind = RecordKind(GATEWAYS, _key, encode_rights, lambda _key: "rights", has_version=False)

    def apply(self, rights: RightsFile, by: str, version: int | None) -> AppliedRights:
        """Put rights in force at all gateways, as a new version unless they are so already.

        Args:
            rights: All of them.
            by: Name of the caller.
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
            size = len(encode_rights(applied))
            if size > MAX_BYTES:
                raise RightsTooLarge(
                    f"these rights have {size} bytes, expected at most {MAX_BYTES}: say more "
                    "with roles, %u and %c, or use rights_file"
                )
            old = applied.version - KEPT_VERSIONS
            gone: list[tuple[int | None, None]] = [(old, None)] if old > 0 else []
            self.write([(applied.version, applied), (None, applied), *gone])
        return applied
