"""Rights that were applied by the API: records of `mqlake.gateways`, for all gateways.

The newest one is under `RIGHTS_KEY`, and gateways read no other; `rights_version_key` has it, too,
and the versions before.
"""

import json
from typing import Final

from mqlake.records.messages import RIGHTS_KEY
from mqlake.records.models import decode_model
from mqlake.records.versions import RECORD_VERSION
from mqlake.rights.model import RightsFile

_VERSION_PREFIX: Final = RIGHTS_KEY + b"/"


class AppliedRights(RightsFile):
    """A version of the rights: the content of a file, and the caller that applied it."""

    version: int
    """Counts up from 1 and is never used twice."""
    at: int
    """When it was applied, UTC epoch in milliseconds."""
    by: str
    """The caller of the API that applied it."""

    @property
    def content(self) -> RightsFile:
        """Its rights, as content of a file."""
        return RightsFile.model_construct(roles=self.roles, rules=self.rules)


def rights_version_key(version: int) -> bytes:
    return _VERSION_PREFIX + b"%d" % version


def rights_version_of(key: bytes) -> int | None:
    """Undo `rights_version_key`; None for the key of something else."""
    number = key.removeprefix(_VERSION_PREFIX)
    return int(number) if key.startswith(_VERSION_PREFIX) and number.isdigit() else None


def encode_rights(rights: AppliedRights) -> bytes:
    members = rights.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({"v": RECORD_VERSION, **members}, ensure_ascii=False).encode()


def decode_rights(value: bytes) -> AppliedRights:
    """Undo `encode_rights`.

    Raises:
        InvalidRecord: Not JSON, another version, or no rights.
    """
    return decode_model(AppliedRights, value, "rights", "are")
