"""Services of the process for actions: by tenant the contract `ActionServices`."""

from collections.abc import Callable
from typing import Any, Final

from mqlake.clock import Clock
from mqlake.identifiers import MessageIdentifiers, machine_number
from rules.actions.contract import ActionError, HttpClient, LogTarget, SqlDatabase
from rules.runner.cluster import KafkaCluster
from rules.runner.database import PostgresDatabase
from rules.runner.http_client import HttpClientPool
from rules.runner.named_secrets import Secrets
from rules.runner.settings import (
    KafkaConnection,
    PostgresConnection,
    RulesSettings,
    find_for,
)
from rules.runner.target import KafkaTarget


class RunnerServices:
    """Make it inside the event loop.

    Attributes:
        published: Action identifiers of messages that an earlier run has published and may not have
            noted; see `is_published`.
    """

    def __init__(
        self, settings: RulesSettings, target: LogTarget, clock: Clock, stop: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._target = target
        self._clock = clock
        self._stop = stop
        self.max_topic_levels = settings.max_topic_levels
        self._origin = f"{settings.site}/{settings.name}".encode()
        self._identifiers = MessageIdentifiers(
            clock, datacenter=settings.datacenter, machine=machine_number()
        )
        self._clusters: dict[str, KafkaTarget] = {}
        self._databases: dict[str, PostgresDatabase] = {}
        self.published: set[bytes] = set()

    def of(self, tenant: str, may_publish: Callable[[str], bool]) -> "TenantServices":
        """Return the services for actions of a tenant's rules.

        Args:
            tenant: Whose rules.
            may_publish: Tells whether the maker of the rule may publish to a topic now.
        """
        secrets = Secrets(self._settings.secrets, tenant)
        return TenantServices(self, tenant, secrets, may_publish)

    def log(self, tenant: str, connection: str | None) -> LogTarget:
        if connection is None:
            return self._target
        name, settings = self._connection(tenant, connection)
        if not isinstance(settings, KafkaConnection):
            raise ActionError(f"connection {connection} is no Kafka cluster")
        if name not in self._clusters:
            self._clusters[name] = _cluster(settings, self._clock)
        return self._clusters[name]

    def database(self, tenant: str, connection: str) -> SqlDatabase:
        name, settings = self._connection(tenant, connection)
        if not isinstance(settings, PostgresConnection):
            raise ActionError(f"connection {connection} is no database")
        if name not in self._databases:
            self._databases[name] = PostgresDatabase(connection, settings)
        return self._databases[name]

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
        for cluster in self._clusters.values():
            await cluster.close()
        for database in self._databases.values():
            await database.close()

    def _connection(
        self, tenant: str, name: str
    ) -> tuple[str, PostgresConnection | KafkaConnection]:
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
        services: Of all.
        tenant: Whose rules.
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
        self.http = services.http
        self.check_secret = secrets.check
        self.read_secret = secrets.read
        self.may_publish = may_publish
        self.is_published = services.is_published
        self.next_message_id = services.next_message_id
        self.max_topic_levels = services.max_topic_levels
        self.stop = services.stop

    def log(self, connection: str | None) -> LogTarget:
        return self._services.log(self._tenant, connection)

    def database(self, connection: str) -> SqlDatabase:
        return self._services.database(self._tenant, connection)

    @property
    def origin(self) -> bytes:
        return self._services.origin


CLUSTER_SECONDS: Final = 10.0
"""A cluster that is away must be reported in time for the lane to fall behind."""


def _cluster(settings: KafkaConnection, clock: Clock) -> KafkaTarget:
    cluster = KafkaCluster(
        settings.bootstrap_servers, "mqlake-rules", CLUSTER_SECONDS, _login(settings)
    )
    return KafkaTarget(cluster.open_writer(), cluster, clock)


def _login(settings: KafkaConnection) -> dict[str, Any]:
    options: dict[str, Any] = {"security.protocol": settings.security_protocol}
    if settings.ca_certificates is not None:
        options["ssl.ca.location"] = str(settings.ca_certificates)
    if settings.security_protocol.startswith("sasl"):
        password = ""
        if settings.password_file is not None:
            password = settings.password_file.read_text(encoding="utf-8").strip()
        elif settings.password is not None:
            password = settings.password.get_secret_value()
        options |= {
            "sasl.mechanism": settings.sasl_mechanism,
            "sasl.username": settings.user,
            "sasl.password": password,
        }
    return options
