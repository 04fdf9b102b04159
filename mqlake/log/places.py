"""In how many partitions of `mqlake.inbound` messages are: not always in all that it has.

Kafka lets anybody add partitions, takes none away, and clients put keys into all. Messages stay in
those that the log was made with, until it has grown by our own hands (`mqlake.log.growth`).
"""

from mqlake.log.growth import Growth


def used_partitions(inbound: int, outputs: int, growth: Growth | None) -> int:
    """Return how many partitions messages go into.

    Args:
        inbound: Partitions of `mqlake.inbound`.
        outputs: Partitions of `mqlake.outputs`, which is made with as many; 0 if it is not there.
        growth: Last growth of the log; None: it has never grown.
    """
    return made_with(inbound, outputs) if growth is None else growth.used


def made_with(inbound: int, outputs: int) -> int:
    """Return how many partitions `mqlake.inbound` was made with; arguments as above."""
    return min(inbound, outputs or inbound)
