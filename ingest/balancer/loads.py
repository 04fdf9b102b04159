"""Which load is expected of which bucket: from the clients' rates, such as those of last week.

A file of lines `<tenant>,<client_id>,<rate>`, with a header or without, in any unit.
"""

from __future__ import annotations

import csv
from math import isfinite
from typing import TYPE_CHECKING, Final

from ingest.balancer.placement import bucket_of
from mqlake.errors import MqlakeError

if TYPE_CHECKING:
    from collections.abc import Iterable

FLOOR: Final = 0.5
"""Part of the load that is spread evenly: over clients that the file does not know, and over what a
client costs that sends nothing."""


class LoadsError(MqlakeError):
    """A file of rates cannot be read."""


def read_loads(lines: Iterable[str], buckets: int) -> list[float]:
    """Return the load of each bucket; the mean is 1.

    Raises:
        LoadsError: A line has not three fields, or a rate is no number above or equal to 0.
    """
    rates = [0.0] * buckets
    for number, row in enumerate(csv.reader(lines), 1):
        if not row or (number == 1 and row[-1] == "rate"):
            continue
        try:
            tenant, client_id, text = row
            rate = float(text)
        except ValueError as exc:
            raise LoadsError(f"line {number}: expected tenant,client_id,rate, got {row}") from exc
        if not isfinite(rate) or rate < 0:
            raise LoadsError(f"line {number}: rate {text} is not a number from 0")
        if client_id:
            rates[bucket_of(tenant, client_id, buckets)] += rate
    total = sum(rates)
    if not total:
        return [1.0] * buckets
    return [FLOOR + (1 - FLOOR) * rate * buckets / total for rate in rates]
