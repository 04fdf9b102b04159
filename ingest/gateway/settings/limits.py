"""Limits for clients, as settings."""

from typing import Final, Literal

from pydantic import Field

from mqlake.settings import SettingsGroup

LEAST_BYTES_PER_SECOND: Final = 1024


class LimitSettings(SettingsGroup):
    """Limits for clients; 0: no limit.

    A rate without user or gateway in its name applies to one connection.
    """

    subscriptions: int = Field(
        default=100_000,
        ge=0,
        description="Subscriptions of one session; more are refused with 0x97 (3.x: 0x80).",
    )
    session_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Bytes of topic filters and will, with its properties, of one session; beyond "
        "it filters, or a CONNECT with such a will, are refused with 0x97 (3.x: 0x80 and 3).",
    )
    queued_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=0,
        description="Payload bytes queued for one client. For more see when_queue_full.",
    )
    messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages that one client publishes, in a sliding window of a second.",
    )
    deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="Cost per second of the messages of one client: 1 for each, and 1 for each "
        "client that receives it; the burst is as large.",
    )
    bytes_per_second: int = Field(
        default=0,
        ge=0,
        description="Bytes per second that one client sends, at least 1024; the burst is as large.",
    )
    filters_per_second: int = Field(
        default=0,
        ge=0,
        description="Topic filters per second that one client names in SUBSCRIBE and UNSUBSCRIBE; "
        "the burst is ten times as large.",
    )
    user_messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages per second that all connections of one user publish, at all "
        "gateways together (within 10 %); the burst is as large. Clients that have not logged in "
        "are not counted together. Must be the same at all gateways of a site. Limits of tenants: "
        "docs/tenants.md.",
    )
    user_deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="Cost per second of these messages, as deliveries_per_second.",
    )
    user_bytes_per_second: int = Field(
        default=0,
        ge=0,
        description="Bytes per second that all connections of one user send, at least 1024; the "
        "burst is as large.",
    )
    user_filters_per_second: int = Field(
        default=0,
        ge=0,
        description="Topic filters per second named by all connections of one user; the burst is "
        "as large.",
    )
    user_connects_per_second: int = Field(
        default=0,
        ge=0,
        description="Clients per second of one user that all gateways let in; more are refused "
        "with 0x9F.",
    )
    user_connections: int = Field(
        default=0,
        ge=0,
        description="Connections of one user at all gateways together; more are refused with 0x97.",
    )
    user_subscriptions: int = Field(
        default=0,
        ge=0,
        description="Subscriptions of one user at all gateways together; more are refused with "
        "0x97.",
    )
    user_session_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of topic filters and wills of one user; beyond it filters, and a "
        "CONNECT with such a will, are refused with 0x97.",
    )
    user_queued_bytes: int = Field(
        default=0,
        ge=0,
        description="Payload bytes queued for all connected clients of one user; beyond it as with "
        "queued_bytes.",
    )
    gateway_messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages per second that all clients of this gateway publish; the burst is "
        "as large. Listeners have their own limits ([[listeners]]).",
    )
    gateway_deliveries_per_second: int = Field(
        default=0,
        ge=0,
        description="Cost per second of these messages, as deliveries_per_second.",
    )
    gateway_bytes_per_second: int = Field(
        default=0,
        ge=0,
        description="Bytes per second that all clients of this gateway send; the burst is as "
        "large.",
    )
    gateway_filters_per_second: int = Field(
        default=0,
        ge=0,
        description="Topic filters per second named by all clients of this gateway; the burst is "
        "as large.",
    )
    gateway_subscriptions: int = Field(
        default=0,
        ge=0,
        description="Subscriptions of all clients of this gateway; more are refused with 0x97.",
    )
    gateway_session_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of topic filters and wills of all clients of this gateway.",
    )
    gateway_retained_messages: int = Field(
        default=0,
        ge=0,
        description="Retained messages, of all tenants, that this gateway has copies of (with one "
        "or two gateways, each has all); for more topics, see when_retained_full.",
    )
    gateway_retained_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes of these messages.",
    )
    when_retained_full: Literal["refuse", "forward"] = Field(
        default="refuse",
        description="A message with RETAIN beyond a limit of the client, user, tenant or gateway: "
        '"refuse" it with 0x97, or "forward" it to subscribers without keeping it. Both are '
        "recorded in the table drops.",
    )
    when_too_fast: Literal["wait", "disconnect"] = Field(
        default="wait",
        description='When a client exceeds one of these rates: "wait" stops reading until it is '
        'within the rate again (nothing is lost), "disconnect" closes its connection with 0x96 '
        "(messages) or 0x97.",
    )
    connects_per_second: int = Field(
        default=0,
        ge=0,
        description="Maximum CONNECT packets per second that this gateway processes; more are "
        "refused with 0x9F (3.x: 3) before a password is checked.",
    )

    failed_logins_before_ban: int = Field(
        default=0,
        ge=0,
        description="Maximum failed logins of one address (IPv6: of one /64 network) within a "
        "minute; beyond it the address is banned for ban_seconds, at all gateways.",
    )
    connects_before_ban: int = Field(
        default=0,
        ge=0,
        description="Maximum times within a minute that one client is let in as the same user; "
        "beyond it the client is banned for ban_seconds, at all gateways.",
    )
    ban_seconds: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Duration of such a ban.",
    )

    @property
    def has_rates(self) -> bool:
        """Tell whether there is a rate for each client."""
        return bool(
            self.messages_per_second
            or self.deliveries_per_second
            or self.bytes_per_second
            or self.filters_per_second
        )
