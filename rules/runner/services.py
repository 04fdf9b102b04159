"""Services of the process for actions: by tenant the contract `ActionServices`."""

from collections.abc import Callable
from typing import Any

from mqlake.clock import Clock
from mqlake.identifiers import MessageIdentifiers, machine_number
from rules.actions import CONNECTION_KINDS
from rules.actions.connections import Client, ConnectionKind, ForTenants
from rules.actions.contract import ActionError, HttpClient, LogTarget
from rules.runner.http_client import HttpClientPool
from rules.runner.named_secrets import Secrets
from rules.runner.settings import RulesSettings, find_for


class RunnerServices:
    """Make it inside the event loop.

    Attributes:
        log: Writer to the log.
        published: Action identifiers of messages that an earlier run has published and may not have
            noted; see `is_published`.
    """

    def __init__(
        self, settings: RulesSettings, target: LogTarget, clock: Clock, stop: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self.log = target
        self._clock = clock
        self._stop = stop
        self.max_topic_levels = settings.max_topic_levels
        self._origin = f"{settings.site}/{settings.name}".encode()
        self._identifiers = MessageIdentifiers(
            clock, datacenter=settings.datacenter, machine=machine_number()
        )
        self._openers = {kind: kind.load() for kind in CONNECTION_KINDS}
        self._clients: dict[str, Any] = {}
        self.published: set[bytes] = set()

    def of(self, tenant: str, may_publish: Callable[[str], bool]) -> "TenantServices":
        """Return the services for actions of a tenant's rules.

        Args:
            tenant: Owner of the rules.
            may_publish: Tells whether the maker of the rule may publish to a topic now.
        """
        secrets = Secrets(self._settings.secrets, tenant)
        return TenantServices(self, tenant, secrets, may_publish)

    def connection(self, tenant: str, kind: ConnectionKind[Client], name: str) -> Client:
        full, settings = self._settings_of(tenant, name)
        if not isinstance(settings, kind.settings):
            raise ActionError(f"connection {name} is not of kind {kind.name}")
        if full not in self._clients:
            self._clients[full] = self._openers[kind](name, settings, self._clock)
        client: Client = self._clients[full]
        return client

    def http(self, *, concurrency: int, timeout_seconds: float, verify_tls: bool) -> HttpClient:
        return HttpClientPool(
            self._settings.http,
            self._clock,
            concurrency=concurrency,
            timeout_seconds=timeout_seconds,
            verify_tls=verify_tls,
        )

    def is_published(self, action_id: bytes) -> bool:
        return action_id in self.published

    def next_message_id(self) -> bytes:
        return self._identifiers.next()

    @property
    def origin(self) -> bytes:
        return self._origin

    def stop(self, reason: str) -> None:
        self._stop(reason)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _settings_of(self, tenant: str, name: str) -> tuple[str, ForTenants]:
        found = find_for(tenant, name, self._settings.connections)
        if found is None:
            raise ActionError(
                f"there is no connection {name} for rules of the tenant {tenant}; connections are "
                "in the settings of the process that runs actions"
            )
        return found


class TenantServices:
    """Keeps the contract for the rules of one tenant: names in them are theirs, or for them.

    Args:
        services: Services of all tenants.
        tenant: Owner of the rules.
        secrets: That these may name.
        may_publish: See the contract.
    """

    def __init__(
        self,
        services: RunnerServices,
        tenant: str,
        secrets: Secrets,
        may_publish: Callable[[str], bool],
    ) -> None:
        self._services = services
        self._tenant = tenant
        self.log = services.log
        self.http = services.http
        self.check_secret = secrets.check
        self.read_secret = secrets.read
        self.may_publish = may_publish
        self.is_published = services.is_published
        self.next_message_id = services.next_message_id
        self.max_topic_levels = services.max_topic_levels
        self.stop = services.stop

    def connection(self, kind: ConnectionKind[Client], name: str) -> Client:
        return self._services.connection(self._tenant, kind, name)

    @property
    def origin(self) -> bytes:
        return self._services.origin
