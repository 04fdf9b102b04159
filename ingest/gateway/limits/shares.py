"""Shares of this gateway in limits that connections share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.gateway.settings.limits import LEAST_BYTES_PER_SECOND
from ingest.session.limits.shared_counts import SharedCount
from ingest.session.limits.shared_rates import SharedRate
from mqlake.records.tenants import RATES, STOCKS

if TYPE_CHECKING:
    from collections.abc import Mapping


class Shares:
    """This gateway's part of limits, for the connections that share them.

    Args:
        whose: In the text for a client that is disconnected or refused: `a user`.
        limits: By kind; a kind that is not there has none.
        is_whole: The rest of a stock is not divided, as of `SharedCount`.

    Attributes:
        messages, deliveries, bytes, filters, connects: The rates; None: no limit.
        stocks: Limits of other kinds.
    """

    __slots__ = ("__weakref__", *RATES, "_is_whole", "stocks", "whose")

    def __init__(self, whose: str, limits: Mapping[str, int], *, is_whole: bool = False) -> None:
        self.whose = whose
        self._is_whole = is_whole
        self.messages: SharedRate | None = None
        self.deliveries: SharedRate | None = None
        self.bytes: SharedRate | None = None
        self.filters: SharedRate | None = None
        self.connects: SharedRate | None = None
        self.stocks: dict[str, SharedCount] = {}
        self.limit(limits)

    def limit(self, limits: Mapping[str, int]) -> None:
        """Set other limits; amounts taken of those that stay count."""
        for kind in RATES:
            most, known = limits.get(kind, 0), getattr(self, kind)
            if kind == "bytes" and most:
                most = max(most, LEAST_BYTES_PER_SECOND)
            if known is not None and most:
                known.limit = float(most)
            else:
                setattr(self, kind, SharedRate(float(most)) if most else None)
        stocks = self.stocks
        self.stocks = {
            kind: SharedCount(limits[kind], is_whole=self._is_whole)
            for kind in STOCKS
            if kind in limits
        }
        for kind, known in stocks.items():
            if kind in self.stocks:
                known.limit = limits[kind]
                self.stocks[kind] = known

    def rates(self) -> list[tuple[str, SharedRate]]:
        """Return those that are limited, by kind."""
        return [(kind, rate) for kind in RATES if (rate := getattr(self, kind)) is not None]
