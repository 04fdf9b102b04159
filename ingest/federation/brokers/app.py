"""Makes the federator of a site that is federated by its MQTT broker."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ingest.federation.brokers.metrics import add_federator
from ingest.federation.brokers.service import FederationService
from ingest.federation.process import RunningSite
from mqlake.clock import SystemClock

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ingest.federation.settings import FederationSettings


async def make(settings: FederationSettings, stack: AsyncExitStack, name: str) -> RunningSite:
    """Make the federator; its links are its own, so nothing is left to the stack."""
    service = FederationService(settings, SystemClock())
    return RunningSite(service, partial(add_federator, service))
