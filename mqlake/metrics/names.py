"""The metrics of each process: names, kinds, labels, words. `docs/observability.md` is this table.

Units are in the names: seconds, bytes, records. Counters begin at zero when their process starts.
Labels take few values; where users make them (rules, routes of requests), only the first `MOST`
stand for themselves and the others are added up as `OTHER`.
"""

from dataclasses import dataclass
from typing import Final, Literal

MOST: Final = 500
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    words: str
    labels: tuple[str, ...] = ()


def _counter(name: str, words: str, *labels: str) -> Metric:
    return Metric(f"mqlake_{name}_total", "counter", words, labels)


def _gauge(name: str, words: str, *labels: str) -> Metric:
    return Metric(f"mqlake_{name}", "gauge", words, labels)


def _histogram(name: str, words: str, *labels: str) -> Metric:
    return Metric(f"mqlake_{name}_seconds", "histogram", words, labels)


EVERY_PROCESS: Final = (
    _gauge("build_info", "1; the labels say what runs", "process", "version"),
    _gauge("healthy", "1 when the process does what it is for, else 0", "process"),
    _counter("logged_lines", "lines of its log", "level"),
)

GATEWAY: Final = (
    _gauge("gateway_connections", "open network connections"),
    _gauge("gateway_clients", "clients that are connected"),
    _gauge("gateway_sessions", "sessions, connected or not"),
    _gauge("gateway_sessions_catching_up", "of these, back and given what they have missed"),
    _gauge("gateway_subscriptions", "subscriptions"),
    _gauge("gateway_retained_messages", "retained messages of the shards that it owns"),
    _gauge("gateway_retained_incomplete_shards", "shards of which retained messages are missing"),
    _counter("gateway_connections_opened", "network connections"),
    _counter("gateway_connections_refused", "of these, not let in"),
    _counter("gateway_clients_too_fast", "times that a client was beyond a rate of its limits"),
    _counter("gateway_clients_waited_for_credits", "times that overload had a client wait"),
    _counter("gateway_clients_disconnected_for_memory", "clients that held the most of too much"),
    _counter(
        "gateway_clients_fell_behind", "times that a full queue had a client read from the log"
    ),
    _counter("gateway_attempts_denied", "to connect, publish or subscribe without the right to"),
    _counter("gateway_sessions_caught_up", "times that a session had got what it had missed"),
    _counter("gateway_sessions_expired", "sessions that ended by their expiry"),
    _counter("gateway_received_bytes", "bytes from clients"),
    _counter("gateway_sent_bytes", "bytes to clients"),
    _counter("gateway_packets_received", "control packets from clients"),
    _counter("gateway_packets_sent", "control packets to clients"),
    _counter("gateway_messages_received", "PUBLISH packets from clients", "qos"),
    _counter("gateway_messages_sent", "PUBLISH packets to clients", "qos"),
    _counter("gateway_payload_received_bytes", "bytes of payload from clients"),
    _counter("gateway_payload_sent_bytes", "bytes of payload to clients"),
    _counter("gateway_messages_stored", "messages of clients that the log has taken"),
    _counter("gateway_messages_refused", "messages of clients that log or disk did not take"),
    _counter(
        "gateway_messages_dropped", "messages owed to a client that it does not get", "reason"
    ),
    _counter("gateway_deliveries_received", "records from the router"),
    _counter("gateway_deliveries_repeated", "of these, sent again after a restart"),
    _counter("gateway_deliveries_malformed", "of these, not to be read"),
    _counter("gateway_session_records_ignored", "records of sessions not to be read, passed over"),
    _counter("gateway_events_lost", "events that the log did not take"),
    _counter("gateway_events_left_out", "deliveries too many to tell rules of"),
    _gauge("gateway_log_queue_records", "records on their way to the log"),
    _gauge("gateway_clock_ahead_seconds", "how far its clock is ahead of the log's; < 0: behind"),
    _gauge("gateway_waiting_messages", "messages that clients are owed or have not acknowledged"),
    _gauge("gateway_clients_behind", "clients that are read for from the log: they are slow"),
    _gauge("gateway_overload_level", "work beyond what it can do, 0 to 10; above 4: too much"),
    _gauge("gateway_overload_step", "the step taken against it, 0 (none) to 4"),
    _gauge("gateway_overload_waiting_clients", "publishers that wait for credits"),
    _gauge("gateway_waiting_wills", "wills on their way into the log"),
    _gauge("gateway_refusing_publishers", "1 while messages are refused for want of disk, else 0"),
    _gauge(
        "gateway_route_wait_seconds", "age of the oldest subscription that waits for the router"
    ),
    _histogram("gateway_accept", "from PUBLISH (QoS 1, 2) to PUBACK or PUBREC; of a sample"),
    _histogram("gateway_route", "from the log to the delivery topic; of a sample"),
    _histogram("gateway_deliver", "from PUBLISH to PUBLISH to subscribers; of a sample"),
)

_QUERY: Final = ("query", "tenant", "rule")
_TARGET: Final = ("query", "log_topic", "partition")

ROUTER_AND_LAKE: Final = (
    _gauge("query_active", "1 while the query runs, else 0", *_QUERY),
    _gauge("query_lag_records", "offsets of the log that it has not come to", *_QUERY),
    _gauge("query_input_records_per_second", "records read, over ten seconds", *_QUERY),
    _gauge("query_batch_duration_seconds", "of the last batch; none in real time", *_QUERY),
    _gauge("query_state_rows", "keys in its state", *_QUERY),
    _counter("query_restarts", "after failures", *_QUERY),
    _gauge("undelivered_records", "records that wait, for its brokers are away", *_TARGET),
    _gauge("undelivered_bytes", "their bytes", *_TARGET),
    _gauge("undelivered_oldest_seconds", "how long the oldest has waited, about", *_TARGET),
    _gauge("jvm_heap_used_bytes", "Java heap of the engine in use"),
    _gauge("jvm_heap_max_bytes", "most that it may become"),
)

QUERY: Final = (
    _gauge("query_application_running", "1 while its Spark can be asked, else 0"),
    _gauge("query_application_uses", "queries and jobs that use it"),
    _gauge("query_application_start_seconds", "that its last start took"),
    _counter("query_application_starts", "times that its Spark was started"),
    _counter("query_application_ends", "times that its Spark ended: idle, memory, …", "cause"),
)

_ACTION: Final = ("tenant", "rule", "action", "function")

RULES: Final = (
    _counter("action_outputs_done", "outputs whose action succeeded", *_ACTION),
    _counter("action_outputs_failed", "outputs given up", *_ACTION),
    _counter("action_outputs_dropped", "outputs that were never tried", *_ACTION),
    _counter("action_retries", "tries beyond the first", *_ACTION),
    _gauge("action_queued_outputs", "outputs in memory", *_ACTION),
    _gauge("action_behind_outputs", "outputs of all rules that it has to read again", *_ACTION),
    _histogram("action_latency", "from the receipt of the message to the action's end", *_ACTION),
)

FEDERATION: Final = (
    _gauge("federation_neighbour_there", "1 while its federator is heard, else 0", "neighbour"),
    _gauge(
        "federation_link_waiting_packets", "packets its broker has not acknowledged", "neighbour"
    ),
    _counter(
        "federation_link_dropped_packets", "packets that were too many or too large", "neighbour"
    ),
    _gauge("federation_link_behind_records", "records of the log it may not have", "neighbour"),
    _counter(
        "federation_link_records_gone",
        "times that the log no longer had the record that it was to get next",
        "neighbour",
    ),
    _gauge(
        "federation_link_held_messages",
        "messages it brought that wait for others to be filled in, unacknowledged",
        "neighbour",
    ),
    _gauge("federation_streams", "partitions of other sites of which messages came"),
    _gauge("federation_gaps", "of these, ranges that may still come on another path"),
    _gauge("federation_meshes", "meshes that it knows, by what it is in them", "state"),
    _gauge("federation_interests", "filters of local subscribers"),
    _gauge("federation_stored_messages", "messages that neighbours may fetch again"),
    _counter("federation_store_overflow", "of these, gone before their time"),
    _gauge("federation_held_back_messages", "messages that wait for one before them"),
    _counter("federation_gaps_given_up", "missing messages that were waited for in vain"),
    _counter("federation_marks_forgotten", "topics or identifiers of which duplicates pass"),
    _counter("federation_outdated", "retained messages that were not the latest of their topic"),
    _counter("federation_for_groups", "messages that other sites handed over for share groups"),
    _counter("federation_handed", "messages for share groups that neighbours were chosen for"),
    _counter("federation_returned", "of these, that a neighbour had no member for any more"),
    _counter("federation_unclaimed", "of these, that no site has a member for any more"),
    _gauge("federation_retained_topics", "topics whose latest retained message is known"),
    _counter("federation_shown_again", "of these, times that an older one had come after it"),
    _counter("federation_published", "messages of local clients"),
    _counter("federation_received", "messages from neighbours, copies included"),
    _counter("federation_duplicates", "of these, had before"),
    _counter("federation_echoes", "of these, its own"),
    _counter("federation_sent", "messages to neighbours, one for each"),
    _counter("federation_offered", "messages offered to neighbours that get them on another path"),
    _counter("federation_asked", "offered messages that did not come and were asked for"),
    _counter("federation_link_sent_bytes", "to a neighbour's federator, all packets", "neighbour"),
    _counter("federation_link_slowed", "times that its rate held messages back", "neighbour"),
    _counter("federation_delivered", "messages of other sites for local subscribers"),
    _counter("federation_unwanted", "messages that no local subscriber wants"),
    _counter("federation_repaired", "messages sent again to neighbours that missed them"),
    _counter("federation_waves", "times that everybody was asked for what one neighbour had not"),
    _counter("federation_refused", "messages of topics that their link may not bring"),
    _counter("federation_expired", "messages that expired before a neighbour got them"),
    _counter("federation_over_hop_limit", "messages that have come too far to be passed on"),
    _counter("federation_control_sent", "control packets to neighbours"),
    _counter("federation_control_received", "control packets from neighbours"),
    _counter("federation_elections", "times that another site became a core"),
    _counter("federation_strangers", "packets from sites that are no neighbours"),
    _counter("federation_malformed", "packets that could not be read"),
    _gauge(
        "federation_cache_needed_messages",
        "the cache_size that it needs: rate times longest outage",
    ),
    _gauge("federation_overlay_links", "sites that it has links to"),
    _gauge(
        "federation_overlay_sites", "other sites that it knows, by whether a way leads there", "way"
    ),
    _counter("federation_overlay_overflow", "words of sites beyond max_sites"),
    _counter("federation_overlay", "outcomes for links and packets of the overlay", "event"),
)

API: Final = (
    _counter("api_requests", "requests answered", "method", "route", "status"),
    _histogram(
        "api_request_duration", "from a request to the beginning of its answer", "method", "route"
    ),
    _gauge("api_live_readers", "connections that read live streams"),
)

BALANCER: Final = (
    _gauge("balancer_node_weight", "weight of a node", "node"),
    _gauge("balancer_node_takes_clients", "1 while a node takes new clients, else 0", "node"),
    _gauge("balancer_node_draining", "1 while a node is drained, else 0", "node"),
    _gauge("balancer_node_healthy", "1 while a node is well in one regard", "node", "factor"),
    _gauge("balancer_node_cpu_percent", "mean CPU of a node, as far as known", "node"),
    _gauge("balancer_node_overload_level", "0 to 10, of nodes that publish it", "node"),
    _gauge("balancer_left_out_nodes", "nodes for which there is no slot"),
    _gauge("balancer_talkers", "clients that are placed for the topics they hear"),
    _gauge("balancer_loads_made_timestamp_seconds", "when the expected loads were written"),
    _gauge("balancer_talkers_placed_timestamp_seconds", "when such clients were placed last"),
    _gauge("balancer_proxy_current", "1 while a proxy runs the snapshot in force, else 0", "proxy"),
    _counter("balancer_proxy_changes", "commands that changed a proxy", "proxy"),
    _counter("balancer_proxy_repairs", "times that a proxy had drifted", "proxy"),
    _counter("balancer_snapshots", "snapshots put in force"),
    _counter("balancer_probes", "probes of nodes by an MQTT client", "result"),
    _counter("balancer_scrapes", "looks at the metrics of nodes", "result"),
)

SUPERVISOR: Final = (
    _gauge("process_up", "1 while the process runs, else 0", "process"),
    _gauge("process_healthy", "1 while it says that it is well, else 0", "process"),
    _counter("process_restarts", "times that it was started again", "process"),
    _gauge("process_uptime_seconds", "since its last start", "process"),
    _gauge("process_resident_memory_bytes", "of it and its children", "process"),
    _counter("process_cpu_seconds", "of it and its children", "process"),
    _gauge("log_taken_bytes", "of the disk that the embedded log takes"),
    _gauge("log_room_bytes", "that the log may take more before messages are refused"),
    _gauge("log_full", "1: the log is full, messages are refused"),
    _gauge(
        "log_lasts_seconds",
        "until messages are refused, at the rate of the last minutes; +Inf without growth",
    ),
    _gauge("data_free_bytes", "free on the disk of the data directory"),
)

AUDIT: Final = (
    _gauge("audit_checked", "cases that an audit has decided", "tenant", "audit"),
    _gauge("audit_broken", "of these, cases that break the promise", "tenant", "audit"),
    _gauge("audit_unknown", "cases that the tables do not decide", "tenant", "audit"),
    _gauge("audit_ended_timestamp_seconds", "when the last audit ended", "tenant"),
)

_OF_GATEWAY: Final = ("tenant", "gateway")
_OF_TABLE: Final = ("tenant", "table")

TENANTS: Final = (
    _gauge("tenant_connections", "clients that are connected", *_OF_GATEWAY),
    _counter("tenant_connects", "clients that were let in", *_OF_GATEWAY),
    _counter("tenant_messages_received", "PUBLISH packets from clients", *_OF_GATEWAY),
    _counter("tenant_payload_received_bytes", "bytes of payload from clients", *_OF_GATEWAY),
    _counter("tenant_messages_sent", "PUBLISH packets to clients", *_OF_GATEWAY),
    _counter("tenant_payload_sent_bytes", "bytes of payload to clients", *_OF_GATEWAY),
    _counter(
        "tenant_messages_dropped", "messages owed to a client that it does not get", *_OF_GATEWAY
    ),
    _counter("tenant_rule_evaluations", "messages that a rule was evaluated on", "tenant"),
    _counter("tenant_rule_outputs", "rows that rules gave", "tenant"),
    _counter("tenant_rule_failures", "evaluations that failed", "tenant"),
    _counter(
        "tenant_rule_evaluation_seconds", "processor time of the evaluation of rules", "tenant"
    ),
    _gauge("tenant_sessions", "that outlive their connection, or have a will", "tenant"),
    _gauge("tenant_stored_rows", "of a table", *_OF_TABLE),
    _gauge("tenant_stored_bytes", "that they take on the disk, about", *_OF_TABLE),
)

BY_PROCESS: Final = {
    "gateway": GATEWAY,
    "router and lake": ROUTER_AND_LAKE,
    "query": QUERY,
    "rules": RULES,
    "federation": FEDERATION,
    "api": API,
    "balancer": BALANCER,
    "supervisor": SUPERVISOR,
    "audit": AUDIT,
}
"""Kind of process -> its metrics, beside `EVERY_PROCESS` and prometheus_client's `process_*`."""

NAMES: Final = {
    metric.name: metric
    for table in (EVERY_PROCESS, *BY_PROCESS.values(), TENANTS)
    for metric in table
}
