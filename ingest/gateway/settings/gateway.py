"""Settings of a gateway process; `conf/gateway.toml` lists them all with their defaults."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from ingest.gateway.settings.authenticators import CREDENTIALS, AuthenticatorSettings
from ingest.gateway.settings.limits import LimitSettings
from ingest.gateway.settings.listeners import ListenerSettings, TcpListener, address_of, is_open
from ingest.gateway.settings.overload import OverloadSettings
from mqlake.log.durability import Durability
from mqlake.settings import (
    LogDiskSettings,
    LogSettings,
    ProcessSettings,
    TopicLevels,
    TracingSettings,
)
from mqlake.topics.names import DEFAULT_MAX_LEVELS
from mqlake.topics.sharing import ShareStrategy


class GatewaySettings(ProcessSettings):
    """Settings of a gateway.

    Read by `bin/mqlake gateway --config conf/gateway.toml`. `bin/mqlake up` sets name, port,
    heartbeat_file, log_file, the log's servers and its disk itself; the ports of further gateways
    count up.
    """

    model_config = SettingsConfigDict(env_prefix="MQLAKE_GATEWAY_")

    log: LogSettings = LogSettings()
    log_disk: LogDiskSettings = LogDiskSettings()
    tracing: TracingSettings = TracingSettings()

    name: str = Field(
        default="gateway-1",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Name of the gateway, unique in its site, and part of the name of its log "
        "topic.",
    )
    site: str = Field(
        default="local",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Site of this gateway. The origin of its messages is <site>/<name>.",
    )
    tenant: str = Field(
        default="default",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Tenant of every client of this gateway.",
    )
    datacenter: int = Field(
        default=0,
        ge=0,
        le=255,
        description="Number in every message identifier.",
    )

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on.",
    )
    port: int = Field(
        default=1883,
        ge=1,
        le=65535,
        description="TCP port to listen on.",
    )
    listeners: tuple[ListenerSettings, ...] = Field(
        default=(),
        description="Further listeners: one table each, any number of a kind. Relative paths "
        "start at the working directory of the process, which is the data directory with "
        "`bin/mqlake up`; there the ports count up with each gateway, as the MQTT port does, and "
        "only the first gateway has Unix sockets.",
    )
    durability: Durability = Field(
        default=Durability.D1,
        description="Durability that the log must guarantee for acknowledged messages "
        '(docs/durability.md). "D1": they survive a crash of any process, "D2": also the loss of '
        'a machine, "D3": also a power failure. With less the gateway does not start.',
    )
    max_connections: int = Field(
        default=100_000,
        ge=1,
        description="Maximum number of connections; more are refused, unless one has not logged "
        "in: that is closed.",
    )
    connect_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="Timeout for CONNECT after the TCP connection.",
    )

    max_packet_bytes: int = Field(
        default=1024 * 1024,
        ge=1024,
        le=64 * 1024 * 1024,
        description="Maximum packet size that a client may send, at most 64 KiB before it is "
        "let in. Sent to 5.0 clients.",
    )
    max_topic_levels: TopicLevels = Field(
        default=DEFAULT_MAX_LEVELS,
        description="Maximum levels of a topic name or topic filter (the parts between slashes). "
        "Beyond it a subscription gets 0x8F (3.x: 0x80), a message 0x90 (3.x and QoS 0: the "
        "connection is closed), a will 0x90 (3.x: 0x05).",
    )
    receive_maximum: int = Field(
        default=1_000,
        ge=1,
        le=65_535,
        description="Maximum QoS 1 and 2 messages of one client that the gateway has not "
        "acknowledged. Sent to 5.0 clients; from others the gateway stops reading.",
    )
    topic_alias_maximum: int = Field(
        default=64,
        ge=0,
        le=65_535,
        description="Maximum topic aliases that a 5.0 client may set.",
    )
    max_inflight_messages: int = Field(
        default=1_000,
        ge=1,
        le=65_535,
        description="Maximum QoS 1 and 2 messages in flight to one client. A 5.0 client may ask "
        "for fewer.",
    )
    max_repeated_messages: int = Field(
        default=100,
        ge=1,
        le=65_535,
        description="Maximum QoS 1 messages that a crash of the gateway may repeat to one client "
        "whose session outlives its connection. This many are sent before the log has recorded "
        "the client's acknowledgements, at most 16 while a client does not wait for that. A low "
        "value limits a session to this many messages per write to the log.",
    )
    max_queued_messages: int = Field(
        default=100_000,
        ge=0,
        description="Maximum QoS 1 and 2 messages queued for one client, whether it is connected "
        "or comes back, or for a share group at this gateway (there at most 100,000, more are "
        "dropped and counted). For a client that has more see when_queue_full.",
    )
    when_queue_full: Literal["catch_up", "drop_newest", "drop_oldest"] = Field(
        default="catch_up",
        description="What a client gets whose queue is full, by max_queued_messages or a limit of "
        'bytes, while it is connected or when it comes back. "catch_up": it goes on from the log '
        "as fast as it takes messages, in order; nothing is dropped that the log or the table "
        'messages holds. "drop_newest", "drop_oldest": the message that comes, or the one that '
        "has waited longest, is dropped and counted. Sessions that end with their connection, and "
        'share groups, drop in any case: with "catch_up" the newest.',
    )
    max_history_reads: int = Field(
        default=50,
        ge=0,
        description='Maximum number of SUBSCRIBEs with the user property "mqlake-from" that '
        "receive their history at the same time; more are refused with 0x97. Each takes about 5 "
        "MB of memory.",
    )
    lease_seconds: float = Field(
        default=10.0,
        ge=2,
        le=300,
        description="After this time without a heartbeat of a gateway, the others take over its "
        "sessions and publish their wills; on the same machine 3 s after its process has ended. "
        "Must be the same at all gateways of a site.",
    )
    limits: LimitSettings = LimitSettings()
    overload: OverloadSettings = OverloadSettings()

    share_strategy: ShareStrategy = Field(
        default=ShareStrategy.ROUND_ROBIN,
        description="How a member of a share group is chosen for a message, over all gateways of "
        'a site: "round_robin", "random", "sticky" (the same one while it is connected), '
        '"hash_topic" or "hash_client_id" (the same one for a topic or publisher). Must be the '
        "same at all gateways; otherwise the gateway that has had members of the group longest "
        "decides.",
    )
    keep_qos_0_offline: bool = Field(
        default=False,
        description="Whether QoS 0 messages are also queued for offline clients.",
    )
    sessions_follow: Literal["principal", "client_id"] = Field(
        default="principal",
        description='Owner of a session. "principal": the user; another user with the same client '
        'identifier is refused with 0x87 (3.x: 5). "client_id": every client with that '
        "identifier. The session of a client that has not logged in has no owner. Must be the "
        "same at all gateways.",
    )
    max_session_expiry_interval: int = Field(
        default=4_294_967_295,
        ge=0,
        le=4_294_967_295,
        description="Maximum time in seconds that a session outlives its connection; 4294967295: "
        "no limit.",
    )
    max_keep_alive_seconds: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Maximum keep alive of 5.0 clients, also for clients that ask for none. 0: "
        "the client decides.",
    )
    max_outgoing_topic_aliases: int = Field(
        default=16,
        ge=0,
        le=65_535,
        description="Maximum topic aliases that the gateway sets for a 5.0 client, within the "
        "client's own limit.",
    )
    response_topic_prefix: str = Field(
        default="",
        description="Response information for 5.0 clients that request it: this prefix, then the "
        "client identifier and a slash. Empty: none.",
    )
    server_reference: str = Field(
        default="",
        description="Server Reference sent to 5.0 clients when this gateway is full or shuts "
        "down. Empty: none.",
    )
    redirect_clients: bool = Field(
        default=False,
        description="Whether a 5.0 client is redirected to the gateway that owns its shard "
        "(CONNACK 0x9C with a Server Reference), which saves two hops through the log. Only if "
        "that gateway has a reachable listener of the same kind; a client that returns within a "
        "minute is accepted.",
    )
    advertised_host: str = Field(
        default="",
        max_length=253,
        pattern=r"^[^\s/:]*$|^\[[0-9a-fA-F:.]+\]$",
        description="Host name or address at which clients reach this gateway's listeners, an "
        "IPv6 address in brackets. Empty: the host of each listener; clients are then not "
        "redirected to a listener on all addresses.",
    )
    agent_check_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port on which HAProxy's agent-check asks how many new clients the gateway "
        "accepts. 0: none.",
    )
    refused_topic_filters: tuple[str, ...] = Field(
        default=(),
        description="Topic filters, exactly as clients write them, that no client may subscribe "
        "to; SUBACK returns 0x80.",
    )
    max_write_buffer_bytes: int = Field(
        default=1024 * 1024,
        ge=16 * 1024,
        description="Maximum bytes buffered for one client's socket. Beyond it QoS 0 is dropped "
        "and counted; QoS 1 and 2 wait in the queue.",
    )

    delivery_events_per_second: int = Field(
        default=1_000,
        ge=0,
        le=100_000,
        description="Maximum message_delivered and message_acked events per second, together, "
        "while a rule reads them. More are only counted (events_left_out). 0: none.",
    )
    drain_seconds: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="Time over which clients are sent to other gateways when the process gets "
        "SIGTERM, a part of them each second. A second SIGTERM ends that. 0: all connections end "
        "at once, as always with `bin/mqlake up`.",
    )
    sys_interval_seconds: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="Interval at which changed values below $SYS/broker are published. 0: no $SYS.",
    )
    route_linger_seconds: float = Field(
        default=5.0,
        ge=0,
        le=3600,
        description="Time for which a filter stays routed after its last subscriber has gone.",
    )
    barrier_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="Timeout after which a barrier without an answer from the router is sent "
        "again.",
    )
    suback_sites_seconds: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="With a federation: maximum time that SUBACK waits until all reachable sites "
        "send the messages of the subscription. 0: it does not wait for other sites.",
    )

    credentials_file: Path | None = Field(
        default=None,
        description="File of users who may log in, by password or SCRAM-SHA-256: `bin/mqlake user "
        "add NAME --file FILE` (with --argon2id: by password only, harder to guess). Mode 0600; "
        "reloaded on SIGHUP. Without it the gateway trusts the user name that a client sends.",
        examples=[Path("/etc/mqlake/credentials")],
    )
    authenticators: dict[str, AuthenticatorSettings] = Field(
        default_factory=dict,
        description="Web servers, tokens, databases and directories that authenticate clients, "
        "each with a name for authenticate_by.",
        examples=["directory", "tokens", "people", "staff"],
    )
    authenticate_by: tuple[str, ...] = Field(
        default=(),
        description="Authenticators, asked in this order until one allows or denies the client: "
        '"credentials" is credentials_file, the others are those of [authenticators]. A client '
        "that none of them knows is refused. Empty: only credentials_file. A listener may have "
        "its own list (authenticate_by in [[listeners]]).",
        examples=[("credentials", "directory")],
    )
    allow_anonymous: bool | None = Field(
        default=None,
        description="Whether clients without a user name are let in. Default: only if there is "
        "neither credentials_file nor [authenticators]. A gateway reachable from other machines "
        "(a host other than 127.0.0.1 and ::1 whose clients need no certificate) does not start "
        "without credentials_file unless this is true.",
        examples=[False],
    )
    failed_logins_per_minute: int = Field(
        default=60,
        ge=0,
        description="Failed logins per minute of one address (IPv6: of one /64 network) before it "
        "must wait. 0: no limit. Logins under way count as failed until they are not.",
    )

    bans_file: Path | None = Field(
        default=None,
        description="File of client identifiers, users and addresses to refuse (docs/rights.md). "
        "Must be writable only by its owner. Reloaded on SIGHUP; clients that are now banned are "
        "disconnected. Must be the same at all gateways of a site.",
        examples=[Path("/etc/mqlake/bans.toml")],
    )
    rights_file: Path | None = Field(
        default=None,
        description="File of rules for the rights of clients (docs/rights.md), used until rights "
        "are applied for all gateways; requires credentials_file. Must be writable only by its "
        "owner; reloaded on SIGHUP. Without rules every client may do everything. Must be the "
        "same at all gateways of a site.",
        examples=[Path("/etc/mqlake/rights.toml")],
    )
    allow_everything: bool = Field(
        default=False,
        description="Whether all users may do everything if there is no rights_file. A gateway "
        "reachable from other machines with a credentials_file does not start without rights_file "
        "unless this is true.",
    )

    store_dir: Path | None = Field(
        default=None,
        description="Folder for the gateway's copy of the log's state: a cache. Retained messages "
        "in it are kept for the next start, which reads only what came since; sessions are read "
        "again. Without it the copy is in memory.",
        examples=[Path("data/gateways/gateway-1")],
    )
    lake_dir: Path | None = Field(
        default=None,
        description="Data directory whose folder tables contains the Delta tables, from which the "
        "gateway reads retained messages and long gaps of sessions. Without it the gateway reads "
        "only the log, without messages that retention has deleted.",
        examples=[Path("data")],
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
        """The missing setting that a listener for other machines needs; "": none is missing."""
        if not self.asks_who:
            if self.allow_anonymous is not None:
                return ""
            return (
                "clients need no login: set credentials_file (bin/mqlake user add NAME --file "
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
                "rights_file is set, credentials_file is not, so no client can prove a user name: "
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
                raise ValueError(f"{place} names an authenticator twice: {', '.join(names)}")
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
        """Tell whether clients have to log in, unless `allow_anonymous` lets them in."""
        return self.credentials_file is not None or bool(self.authenticators)

    @property
    def lets_anybody_in(self) -> bool:
        """Tell whether a client that names no user is let in."""
        if self.allow_anonymous is not None:
            return self.allow_anonymous
        return not self.asks_who

    @property
    def all_listeners(self) -> tuple[ListenerSettings, ...]:
        """The plain one of `host` and `port`, then the further ones."""
        return (TcpListener(host=self.host, port=self.port), *self.listeners)
