"""Check that a log still has what was read of it.

A log loses its end when the brokers that have it are gone, or when one that lacks it becomes the
leader. Then it gives the same offsets to other records, which readers would pass over, and writers
of tables take for records that they have written.
"""

from collections.abc import Mapping

from mqlake.errors import OperationalError


def lost_end(offset: int, end: int) -> str:
    """Return in words why nothing comes from an offset on that is behind the end of a partition."""
    return (
        f"the partition ends at offset {end}, so the log has lost its end: bring back the brokers "
        f"that have records up to {offset} (docs/durability.md)"
    )


def check_not_shorter(
    reader: str, log_topic: str, positions: Mapping[int, int], ends: Mapping[int, int]
) -> None:
    """Refuse positions behind the end of a log topic.

    Args:
        reader: Whose positions they are, for the message.
        log_topic: That it reads.
        positions: Per partition, the first offset that it has not read.
        ends: Per partition, the offset that the next record gets; asked for after the positions.

    Raises:
        OperationalError: The log has lost records that were read.
    """
    for partition, at in sorted(positions.items()):
        end = ends.get(partition, 0)
        if at > end:
            raise OperationalError(
                f"{log_topic} has lost its end: partition {partition} ends at offset {end}, and "
                f"{reader} has read it up to {at}; other records would get these offsets and be "
                "taken for read: bring back the brokers that have them, or start with another "
                "data directory (docs/durability.md)"
            )
