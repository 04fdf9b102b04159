"""Settings of a gateway process; `conf/gateway.toml` lists them all with their defaults."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from ingest.gateway.authentication.settings import CREDENTIALS, AuthenticatorSettings
from ingest.gateway.limits import LimitSettings
from ingest.gateway.listeners.settings import (
    ListenerSettings,
    TcpListener,
    address_of,
    is_open,
)
from ingest.gateway.overload import OverloadSettings
from mqlake.log.durability import Durability
from mqlake.settings import LogSettings, ProcessSettings, TracingSettings
from mqlake.sharing import ShareStrategy
from mqlake.topics import DEFAULT_MAX_LEVELS, MAX_TOPIC_BYTES


class GatewaySettings(ProcessSettings):
    """One gateway: who it is, where it listens, what a client may use of it."""

    model_config = SettingsConfigDict(env_prefix="MQLAKE_GATEWAY_")

    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()

    name: str = Field(
        default="gateway-1",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="unique among the gateways of a site; part of its log topic's name",
    )
    site: str = Field(default="local", pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    tenant: str = Field(
        default="default",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="tenant of every client of this gateway",
    )
    datacenter: int = Field(default=0, ge=0, le=255, description="part of message identifiers")

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=1883, ge=1, le=65535, description="TCP port to listen on")
    listeners: tuple[ListenerSettings, ...] = Field(
        default=(), description="further listeners, each of its kind"
    )
    durability: Durability = Field(
        default=Durability.D1,
        description="what the log must promise of what is acknowledged: D1 it outlives every "
        "process, D2 also a machine, D3 also that the power fails; with less the gateway does not "
        "start",
    )
    max_connections: int = Field(default=100_000, ge=1, description="further clients are refused")
    connect_timeout_seconds: float = Field(
        default=10.0, gt=0, le=300, description="from the TCP connection to its CONNECT"
    )

    max_packet_bytes: int = Field(
        default=1024 * 1024,
        ge=1024,
        le=64 * 1024 * 1024,
        description="largest packet a client may send; told to 5.0 clients",
    )
    max_topic_levels: int = Field(
        default=DEFAULT_MAX_LEVELS,
        ge=1,
        le=MAX_TOPIC_BYTES + 1,
        description="levels of a topic name or topic filter; a message, a subscription or a will "
        "with more is refused with 0x90 or 0x8F",
    )
    receive_maximum: int = Field(
        default=1_000,
        ge=1,
        le=65_535,
        description="QoS 1 and 2 messages of a client not yet acknowledged to it; told to 5.0 "
        "clients, for others the gateway stops reading",
    )
    topic_alias_maximum: int = Field(
        default=64, ge=0, le=65_535, description="topic aliases a 5.0 client may set"
    )
    max_inflight_messages: int = Field(
        default=1_000,
        ge=1,
        le=65_535,
        description="QoS 1 and 2 messages on their way to a client; a 5.0 client may ask for fewer",
    )
    max_repeated_messages: int = Field(
        default=100,
        ge=1,
        le=65_535,
        description="QoS 1 messages that a crash may repeat to a client: further ones wait until "
        "the log knows what it has acknowledged",
    )
    max_queued_messages: int = Field(
        default=100_000,
        ge=0,
        description="QoS 1 and 2 messages that wait for a connected client, or here for a share "
        "group (of which no more than 100,000); further ones are dropped and counted",
    )
    max_history_reads: int = Field(
        default=50,
        ge=0,
        description="SUBSCRIBEs with the user property mqlake-from that get their history at the "
        "same time; further ones are refused with 0x97; each has about 5 MB in memory",
    )
    lease_seconds: float = Field(
        default=10.0,
        ge=2,
        le=300,
        description="after so long without a word from a gateway the others take its sessions "
        "over, and publish wills; after 3 s when they see that its process has ended, on the same "
        "machine; all gateways of a site need the same",
    )
    limits: LimitSettings = LimitSettings()
    overload: OverloadSettings = OverloadSettings()

    share_strategy: ShareStrategy = Field(
        default=ShareStrategy.ROUND_ROBIN,
        description="which member of a share group gets a message, over all gateways of a site: "
        "all need the same; for a group the one counts whose gateway has had members longest",
    )
    max_offline_messages: int = Field(
        default=1_000,
        ge=0,
        description="QoS 1 and 2 messages that wait for a session whose client is not there",
    )
    drop_when_offline: Literal["oldest", "newest"] = Field(
        default="oldest", description="which message goes when max_offline_messages wait"
    )
    keep_qos_0_offline: bool = Field(
        default=False, description="whether QoS 0 messages wait for an absent client too"
    )
    sessions_follow: Literal["principal", "client_id"] = Field(
        default="principal",
        description="whose a session is: its user's, so that another user with the same client "
        "identifier is refused, or the client identifier's, whoever comes with it; all gateways "
        "of a site need the same",
    )
    max_session_expiry_interval: int = Field(
        default=4_294_967_295,
        ge=0,
        le=4_294_967_295,
        description="seconds a session may outlive its connection; the largest value is for ever",
    )
    max_keep_alive_seconds: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="a 5.0 client that asks for a longer keep alive, or for none, gets this; "
        "0 leaves it to the client",
    )
    max_outgoing_topic_aliases: int = Field(
        default=16,
        ge=0,
        le=65_535,
        description="topic aliases the gateway sets towards a 5.0 client that allows them",
    )
    response_topic_prefix: str = Field(
        default="",
        description="a 5.0 client that asks for response information is told this and its client "
        "identifier; empty: it is told nothing",
    )
    server_reference: str = Field(
        default="",
        description="where clients are sent when this gateway is full or stops (5.0)",
    )
    redirect_clients: bool = Field(
        default=False,
        description="whether a 5.0 client is sent to the gateway that owns its shard; who comes "
        "back is served",
    )
    advertised_host: str = Field(
        default="",
        max_length=253,
        pattern=r"^[^\s/:]*$|^\[[0-9a-fA-F:.]+\]$",
        description="host name or address by which clients reach this gateway's listeners, an IPv6 "
        "address in brackets; empty: the host of each, none for one on all addresses",
    )
    agent_check_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="port at which HAProxy's agent-check is told how many new clients are to "
        "come; 0: none",
    )
    refused_topic_filters: tuple[str, ...] = Field(
        default=(),
        description="topic filters, literally, that nobody may subscribe to; SUBACK says so",
    )
    max_write_buffer_bytes: int = Field(
        default=1024 * 1024,
        ge=16 * 1024,
        description="bytes waiting for a client's socket; QoS 0 beyond it is dropped and counted, "
        "QoS 1 and 2 wait in the queue",
    )

    delivery_events_per_second: int = Field(
        default=1_000,
        ge=0,
        le=100_000,
        description="events of deliveries and acknowledgements told to rules that ask for "
        "them; further ones are counted",
    )
    sys_interval_seconds: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="how often changed values below $SYS are published; 0: there are none",
    )
    route_linger_seconds: float = Field(
        default=5.0,
        ge=0,
        le=3600,
        description="how long a filter stays routed after its last subscriber has gone",
    )
    barrier_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="after this long without an answer from the router a barrier is repeated",
    )
    suback_sites_seconds: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="with a federation: how long SUBACK waits until all sites that can be reached "
        "send what is subscribed; 0: it speaks of this site alone",
    )

    credentials_file: Path | None = Field(
        default=None,
        description="users who may log in, made by `mqlake user`; without it a client is whoever "
        "it says",
    )
    authenticators: dict[str, AuthenticatorSettings] = Field(
        default_factory=dict, description="by name: who else may be asked who a client is"
    )
    authenticate_by: tuple[str, ...] = Field(
        default=(),
        description="who is asked who a client is, in this order, until one says yes or no: names "
        'of authenticators, and "credentials" for credentials_file; empty: that file alone',
    )
    allow_anonymous: bool | None = Field(
        default=None,
        description="whether a client without a user name is let in; without a value only where "
        "nobody is asked who a client is, and no other machine reaches a listener",
    )
    failed_logins_per_minute: int = Field(
        default=60,
        ge=0,
        description="failed logins of an address (IPv6: of a /64 network) before it has to wait; "
        "0: any number",
    )

    bans_file: Path | None = Field(
        default=None,
        description="client identifiers, users and addresses that are not let in "
        "(docs/rights.md); all gateways of a site need the same",
    )
    rights_file: Path | None = Field(
        default=None,
        description="rules that say what a client may do until others are applied for all gateways "
        "(docs/rights.md); without any everybody may do everything; all gateways need the same",
    )
    allow_everything: bool = Field(
        default=False,
        description="whether all who log in may do everything, where other machines reach a "
        "listener and there is no rights_file",
    )

    store_dir: Path | None = Field(
        default=None,
        description="folder for what the gateway keeps of the log's state, made anew at each "
        "start; without one it is kept in memory",
    )
    lake_dir: Path | None = Field(
        default=None,
        description="data directory whose folder tables holds the Delta tables: retained messages "
        "and long gaps of sessions are read from them; without one from the log alone, which lacks "
        "what its retention has removed",
    )
    log_dir: Path | None = Field(
        default=None, description="folder of an embedded log, watched for free disk space"
    )
    min_free_disk_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=0,
        description="with less free space on the disk of log_dir, publishers are refused",
    )
    max_log_bytes: int | None = Field(
        default=None,
        ge=0,
        description="with more than this in log_dir, publishers are refused; no limit without it",
    )

    @field_validator("share_strategy")
    @classmethod
    def _members_come_first(cls, strategy: ShareStrategy) -> ShareStrategy:
        if strategy is ShareStrategy.LAST_RESORT:
            raise ValueError("last_resort is no strategy of members")
        return strategy

    @model_validator(mode="after")
    def _strangers_are_let_in_knowingly(self) -> Self:
        missing = self.missing_for_strangers
        opened = next(filter(is_open, self.all_listeners), None)
        if missing and opened is not None:
            raise ValueError(f"other machines reach {address_of(opened)}, and {missing}")
        return self

    @property
    def missing_for_strangers(self) -> str:
        """What is not said that has to be where other machines reach a listener; "" for nothing."""
        if not self.asks_who:
            if self.allow_anonymous is not None:
                return ""
            return (
                "nobody is asked who he is: set credentials_file (bin/mqlake user add NAME --file "
                "FILE), or write allow_anonymous = true"
            )
        if self.rights_file is not None or self.allow_everything:
            return ""
        return (
            "all who log in may do everything: set rights_file (docs/rights.md), or write "
            "allow_everything = true"
        )

    @model_validator(mode="after")
    def _rights_are_somebodys(self) -> Self:
        if self.rights_file is not None and not self.asks_who:
            raise ValueError(
                "rights_file is set, credentials_file is not, so that a client is whoever it says: "
                "set it too (bin/mqlake user add NAME --file FILE), or authenticate_by"
            )
        return self

    @model_validator(mode="after")
    def _authenticators_are_there(self) -> Self:
        if CREDENTIALS in self.authenticators:
            raise ValueError(f"authenticators.{CREDENTIALS}: this is the name of credentials_file")
        places = {"authenticate_by": self.authenticate_by}
        places |= {
            f"authenticate_by of {address_of(one)}": one.authenticate_by for one in self.listeners
        }
        for place, names in places.items():
            for name in names:
                if name == CREDENTIALS and self.credentials_file is None:
                    raise ValueError(f"{place} has {name!r}, credentials_file is not set")
                if name != CREDENTIALS and name not in self.authenticators:
                    known = ", ".join([CREDENTIALS, *self.authenticators])
                    raise ValueError(f"{place} has {name!r}, expected one of: {known}")
            if len(set(names)) < len(names):
                raise ValueError(f"{place} names somebody twice: {', '.join(names)}")
        if unused := set(self.authenticators).difference(*places.values()):
            raise ValueError(f"authenticators.{min(unused)} is in no authenticate_by")
        for name, one in self.authenticators.items():
            if self.rights_file is None and one.brings_rights:
                raise ValueError(
                    f"authenticators.{name} brings roles, rules or attributes along, rights_file "
                    "is not set, so that everybody may do everything: set it too (docs/rights.md)"
                )
        return self

    @property
    def asks_who(self) -> bool:
        """Whether clients have to show who they are, unless `allow_anonymous` lets them in."""
        return self.credentials_file is not None or bool(self.authenticators)

    @property
    def lets_anybody_in(self) -> bool:
        """Whether a client that names no user is let in."""
        if self.allow_anonymous is not None:
            return self.allow_anonymous
        return not self.asks_who

    @property
    def all_listeners(self) -> tuple[ListenerSettings, ...]:
        """The plain one of `host` and `port`, then the further ones."""
        return (TcpListener(host=self.host, port=self.port), *self.listeners)
