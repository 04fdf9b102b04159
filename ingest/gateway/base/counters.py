"""Counters of a gateway. Plain integers: added to on the packet path, read once a second."""

from dataclasses import dataclass


@dataclass(slots=True)
class GatewayCounters:
    connections_opened: int = 0
    connections_refused: int = 0
    connects_received: int = 0
    """CONNECT packets."""
    clients_too_fast: int = 0
    """Times that a client was beyond a rate of `limits`."""
    clients_waited_for_credits: int = 0
    """Times that a client was read no further because the gateway had too much to do."""
    clients_disconnected_for_memory: int = 0
    clients_fell_behind: int = 0
    """Times that a session went on from the log because its queue was full."""
    sessions_caught_up: int = 0
    """Times that a session was back and had got what it had missed."""
    attempts_denied: int = 0
    """Attempts to connect, publish or subscribe without the right."""
    sessions_expired: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    packets_received: int = 0
    """Control packets of all types."""
    packets_sent: int = 0
    messages_received: int = 0
    """PUBLISH packets from clients."""
    messages_received_qos_1: int = 0
    """Those among them with QoS 1; the rest with neither count came with QoS 0."""
    messages_received_qos_2: int = 0
    payload_bytes_received: int = 0
    """In these."""
    messages_stored: int = 0
    """Those among them that were appended to the log."""
    messages_refused: int = 0
    """Those among them that were not appended: the log or the disk did not take them."""
    deliveries_received: int = 0
    """Records the router sent to this gateway."""
    deliveries_repeated: int = 0
    """Those among them at or below the high-water mark: the router's replay after a restart."""
    deliveries_malformed: int = 0
    messages_sent: int = 0
    """PUBLISH packets to clients."""
    messages_sent_qos_1: int = 0
    """Those among them with QoS 1; the rest went out with QoS 0."""
    messages_sent_qos_2: int = 0
    payload_bytes_sent: int = 0
    """In these."""
    dropped_slow_client: int = 0
    """QoS 0 to a client whose socket took no more."""
    dropped_queue_full: int = 0
    """QoS 1 and 2 beyond a client's queue."""
    dropped_expired: int = 0
    dropped_too_large: int = 0
    """Larger than the client's Maximum Packet Size. [MQTT5-3.1.2-25]"""
    dropped_no_member: int = 0
    """For a share group that has no member left here."""
    dropped_not_authorized: int = 0
    """The client has no right to receive them."""
    dropped_retained_full: int = 0
    """Not retained, for their client, user, tenant or gateway has as many as it may."""
    dropped_too_fast: int = 0
    """Not taken, for their client was disconnected for sending too fast."""
    dropped_unreadable: int = 0
    """Owed to a session, but not in the log any more."""
    events_lost: int = 0
    """Records of `mqlake.events` that the log did not take."""
    events_left_out: int = 0
    """Deliveries without an event for rules: more than delivery_events_per_second."""
