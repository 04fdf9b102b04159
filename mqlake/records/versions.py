"""The version of a record: which one a release writes, and which ones it reads.

A release writes one version and reads that one, the one after and all that came before. So a system
can be brought to the next release one process at a time, as long as no release is left out:

- a version adds members and headers, and readers pass over those that they do not know. To remove
  one takes two versions: the first does without it, the second leaves it out;
- a session, a rule or a key that does not change is never written again: its record is of the
  version in which it was written, for as long as the log is there;
- a gateway writes the old version until every gateway that lives reads the new one
  (`mqlake.log.versioned_writer`, `ingest.gateway.peers.peers`). From then on no gateway that is
  older starts. The other processes write the version of their release at once: there is one of
  each, and gateways read it.
"""

from typing import Final

from mqlake.errors import InvalidRecord, NewerRecord

Headers = list[tuple[str, bytes]]

RECORD_VERSION: Final = 3
"""That this release writes. The heartbeat of a gateway says it."""

OLDEST_WRITTEN: Final = max(1, RECORD_VERSION - 1)
"""In force until all gateways that live know a newer one."""

OLDEST_READ: Final = 1
NEWEST_READ: Final = RECORD_VERSION + 1
READ_VERSIONS: Final = range(OLDEST_READ, NEWEST_READ + 1)

HEADER_MQTT: Final = "mqtt"
"""Three bytes: record version, publisher's protocol level (3, 4, 5), flags."""

HEADER_VERSION: Final = "v"
VERSION_HEADER: Final = (HEADER_VERSION, b"%d" % RECORD_VERSION)
"""Header of a record whose value does not say the version."""

_MEMBER: Final = b'{"v":%d' % RECORD_VERSION
"""Every encoder writes the version first, with or without a space."""
_SPACED_MEMBER: Final = b'{"v": %d' % RECORD_VERSION


def check_version(found: object, what: str) -> None:
    """Refuse a record that this release cannot read.

    Args:
        found: The member `v`, None when there is none.
        what: The record, for people.

    Raises:
        NewerRecord: A later release has written it.
        InvalidRecord: The version is too old, or none.
    """
    if type(found) is int and found in READ_VERSIONS:
        return
    problem = f"{what} is of version {found!r}, expected {OLDEST_READ} to {NEWEST_READ}"
    if type(found) is int and found > NEWEST_READ:
        raise NewerRecord(f"{problem}: a later release of mqlake has written it")
    raise InvalidRecord(problem)


def in_version(value: bytes | None, headers: Headers, version: int) -> tuple[bytes | None, Headers]:
    """Return the value and the headers of a record of this release in another version.

    Args:
        value: As an encoder of this release wrote it, or a payload.
        headers: Headers of the record; not changed.
        version: At most one off `RECORD_VERSION`.
    """
    is_message = False
    said: Headers = []
    for name, data in headers:
        if name == HEADER_VERSION:
            said.append((name, b"%d" % version))
        elif name == HEADER_MQTT:
            is_message = True
            said.append((name, bytes((version,)) + data[1:]))
        else:
            said.append((name, data))
    if value is not None and not is_message:
        for member in (_MEMBER, _SPACED_MEMBER):
            if value.startswith(member) and value[len(member) : len(member) + 1] in b",}":
                value = b'{"v":%d' % version + value[len(member) :]
                break
    return value, said
