"""haproxy.cfg as text, for HAProxy 2.6 and later.

Each frontend has a backend of its own with the same slots, `s1` to `s<n>`: servers that are
declared with the places that the last snapshot gave them, or disabled, and changed at run time.
HAProxy's own commands for further servers do not survive its reload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ingest.balancer.talks import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest.balancer.placement import Strategy
    from ingest.balancer.snapshot import PlacedNode, Snapshot

Kind = Literal["tcp", "tls", "tls_passthrough", "websocket"]

NODE_KIND: Final[dict[Kind, str]] = {
    "tcp": "mqtt",
    "tls": "mqtt",
    "tls_passthrough": "mqtts",
    "websocket": "ws",
}
"""Kind of frontend -> which of a node's ports it leads to, unless a port is set."""

PROXIED: Final = "+proxy"
"""Kind of a port that expects the PROXY protocol: `mqtt+proxy`."""

NOWHERE: Final = ("127.0.0.1", 1)
"""Place of a slot without a node; it is disabled."""

CLIENT_ID_BYTES: Final = 65_535
_BALANCE: Final[dict[Strategy, str]] = {
    "round_robin": "roundrobin",
    "least_connections": "leastconn",
    "weighted_cpu": "roundrobin",
    "predicted": "roundrobin",
}

_WHOLE: Final = "{ req.payload(0,0),mqtt_is_valid }"
_CONNECT: Final = "req.payload(0,0),mqtt_field_value(connect,client_identifier)"


@dataclass(frozen=True, slots=True)
class Frontend:
    """A port at which clients connect."""

    name: str
    kind: Kind
    bind: str
    """As HAProxy writes it: `*:1883`, `127.0.0.1:1883`, `:::1883`."""
    node_port: int | None = None
    """The same at all nodes; None: as discovered."""
    certificate: str = ""
    """PEM file with certificate and key, of `tls` and, if it is to be `wss`, `websocket`."""
    send_proxy: bool = False
    """PROXY protocol version 2 to the nodes."""
    accept_proxy: bool = False
    """A PROXY protocol header comes before everything else."""
    path: str = "/mqtt"
    """Path of a `websocket` frontend."""
    sticky_by_source: bool = False
    """Place clients by the address they come from, if the client identifier cannot be seen."""
    tenants: tuple[tuple[str, str], ...] = ()
    """Pairs of SNI and tenant."""

    @property
    def sees_client_id(self) -> bool:
        return self.kind in ("tcp", "tls")

    def port_of(self, node: PlacedNode) -> int | None:
        """Return the node's port behind this frontend; None: it has none."""
        kind, ports = NODE_KIND[self.kind], dict(node.ports)
        if self.send_proxy and kind + PROXIED in ports:
            kind += PROXIED
        return self.node_port or ports.get(kind)


@dataclass(frozen=True, slots=True)
class Proxy:
    """One HAProxy."""

    name: str
    runtime_api: str
    """Unix socket, or host:port."""
    map_file: str
    """File with the map from bucket to slot, as this proxy sees it."""
    talkers_file: str
    """File with the map from client to slot, for clients with a place of their own."""
    peer: str = ""
    """host:port at which other proxies, and the next process after a reload, ask for stick
    entries."""


@dataclass(frozen=True, slots=True)
class ProxyLayout:
    """Settings that all proxies share."""

    strategy: Strategy
    frontends: tuple[Frontend, ...]
    proxies: tuple[Proxy, ...]
    tenant: str
    slots: int
    buckets: int
    max_connections: int
    inspect_seconds: float = 2.0
    stick_seconds: int = 86_400
    stick_entries: int = 1_000_000
    stick_bytes: int = 128
    buffer_bytes: int = 32_768

    @property
    def has_peers(self) -> bool:
        return bool(self.proxies) and all(proxy.peer for proxy in self.proxies)

    @property
    def uses_maps(self) -> bool:
        """Tell whether any frontend asks the maps to slots; HAProxy has them only then."""
        return self.strategy == "predicted" and any(one.sees_client_id for one in self.frontends)

    def sticks(self, frontend: Frontend) -> bool:
        """Tell whether a backend has a stick table."""
        if frontend.sees_client_id:
            return self.strategy != "predicted"
        return frontend.sticky_by_source


def backend_of(frontend: Frontend) -> str:
    return f"nodes_{frontend.name}"


def render(layout: ProxyLayout, proxy: Proxy, snapshot: Snapshot) -> str:
    """Return the configuration of one proxy that begins with a snapshot."""
    sections = [_global(layout, proxy), _defaults(layout), _peers(layout)]
    for frontend in layout.frontends:
        sections.append(_frontend(layout, proxy, frontend))
        sections.append(_backend(layout, frontend, snapshot))
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def maps_of(layout: ProxyLayout, proxy: Proxy, snapshot: Snapshot) -> dict[str, dict[str, str]]:
    """Return the entries of each map file; no map without a node that takes clients."""
    if not layout.uses_maps or not snapshot.buckets:
        return {}
    return {
        proxy.map_file: {str(bucket): f"s{slot}" for bucket, slot in enumerate(snapshot.buckets)},
        proxy.talkers_file: {key: f"s{slot}" for key, slot in snapshot.talkers},
    }


def render_map(entries: Mapping[str, str]) -> str:
    return "".join(f"{key} {value}\n" for key, value in entries.items())


def _global(layout: ProxyLayout, proxy: Proxy) -> list[str]:
    api = proxy.runtime_api
    socket, mode = (f"unix@{api}", "mode 600 ") if "/" in api else (f"ipv4@{api}", "")
    # A reload takes the listening sockets over: no client that connects meanwhile is refused.
    options = f"{mode}level admin expose-fd listeners"
    return [
        "# Written by `bin/mqlake balancer`; it is written again with each snapshot.",
        "global",
        f"    stats socket {socket} {options}",
        f"    localpeer {proxy.name}",
        f"    maxconn {layout.max_connections}",
        "    # A CONNECT that does not fit is placed by weight: its client identifier is not seen.",
        f"    tune.bufsize {layout.buffer_bytes}",
    ]


def _defaults(layout: ProxyLayout) -> list[str]:
    return [
        "defaults",
        "    mode tcp",
        f"    maxconn {layout.max_connections}",
        "    timeout connect 5s",
        "    # MQTT has its own keep alive, which may be hours or none: nodes see to it.",
        "    timeout client 24d",
        "    timeout server 24d",
        "    timeout http-request 10s",
        "    timeout check 2s",
        "    option clitcpka",
        "    option srvtcpka",
        "    retries 2",
        "    option redispatch 1",
    ]


def _peers(layout: ProxyLayout) -> list[str]:
    """Return the proxies that tell each other where clients are; one alone tells its successor."""
    if not layout.has_peers:
        return []
    return ["peers proxies", *(f"    peer {one.name} {one.peer}" for one in layout.proxies)]


def _frontend(layout: ProxyLayout, proxy: Proxy, frontend: Frontend) -> list[str]:
    options = " accept-proxy" if frontend.accept_proxy else ""
    if frontend.certificate:
        options += f" ssl crt {frontend.certificate}"
    lines = [f"frontend {frontend.name}", f"    bind {frontend.bind}{options}"]
    if frontend.kind == "websocket":
        lines += [
            "    mode http",
            f"    http-request deny deny_status 404 unless {{ path {frontend.path} }}",
        ]
    elif frontend.kind == "tls_passthrough":
        names = " ".join(name for name, _ in frontend.tenants)
        lines += [
            f"    tcp-request inspect-delay {_ms(layout.inspect_seconds)}",
            *(
                [f"    tcp-request content reject if !{{ req.ssl_sni -i {names} }}"]
                if names
                else []
            ),
            "    tcp-request content accept if { req.ssl_hello_type 1 }",
        ]
    else:
        lines += _key_rules(layout, proxy, frontend)
    lines.append(f"    default_backend {backend_of(frontend)}")
    return lines


def _key_rules(layout: ProxyLayout, proxy: Proxy, frontend: Frontend) -> list[str]:
    """Return the rules that find tenant and client identifier, and the slot that a map has for it.

    Each waits until the CONNECT is whole, the buffer is full or the delay is over; a client is
    placed by weight then, and never refused. One without a client identifier has no key.
    """
    rule = "    tcp-request content"
    has_client_id = f"{{ var(txn.client_id) -m len 1:{CLIENT_ID_BYTES} }}"
    key = "var(txn.tenant),concat(/,txn.client_id)"
    maps = {
        "own": f"var(txn.key),sha1,bytes(0,{KEY_BYTES}),hex,map({proxy.talkers_file})",
        "slot": f"var(txn.key),crc32,mod({layout.buckets}),map({proxy.map_file})",
    }
    return [
        f"    tcp-request inspect-delay {_ms(layout.inspect_seconds)}",
        "    # Not a CONNECT: nothing to wait for.",
        f"{rule} accept if !{{ req.payload(0,1) -m bin 10 }}",
        f"{rule} set-var(txn.client_id) {_CONNECT} if {_WHOLE}",
        f"{rule} set-var(txn.tenant) str({layout.tenant})",
        *(
            f"{rule} set-var(txn.tenant) str({tenant}) if {{ ssl_fc_sni -i {name} }}"
            for name, tenant in frontend.tenants
        ),
        f"{rule} set-var(txn.key) {key} if {has_client_id}",
        *(
            f"{rule} set-var(txn.{name}) {slot} if {{ var(txn.key) -m found }}"
            for name, slot in (maps.items() if layout.strategy == "predicted" else ())
        ),
        f"{rule} accept if {_WHOLE}",
    ]


def _backend(layout: ProxyLayout, frontend: Frontend, snapshot: Snapshot) -> list[str]:
    lines = [f"backend {backend_of(frontend)}", f"    balance {_BALANCE[layout.strategy]}"]
    is_web = frontend.kind == "websocket"
    if is_web:
        lines += [
            "    mode http",
            "    cookie MQLAKE insert indirect nocache httponly dynamic",
            "    dynamic-cookie-key mqlake",
        ]
    if frontend.sees_client_id and layout.strategy == "predicted":
        lines += [
            f"    use-server %[var(txn.{name})] if {{ var(txn.{name}) -m found }}"
            for name in ("own", "slot")
        ]
    if layout.sticks(frontend):
        lines += _stick_rules(layout, frontend)
    options = "check inter 2s fall 3 rise 1"
    if frontend.send_proxy:
        options += " send-proxy-v2" + ("-ssl" if frontend.certificate else "")
    by_slot = snapshot.by_slot
    lines.extend(
        _server(slot, frontend, by_slot.get(slot), options) for slot in range(1, layout.slots + 1)
    )
    return lines


def _stick_rules(layout: ProxyLayout, frontend: Frontend) -> list[str]:
    peers = " peers proxies" if layout.has_peers else ""
    kind, key = "ipv6", "src"
    if frontend.sees_client_id:
        # Without a length strings are cut at 32 characters.
        kind, key = f"string len {layout.stick_bytes}", "var(txn.key)"
    size = f"size {layout.stick_entries} expire {layout.stick_seconds}s"
    return [f"    stick-table type {kind} {size}{peers}", f"    stick on {key}"]


def _server(slot: int, frontend: Frontend, node: PlacedNode | None, options: str) -> str:
    port = None if node is None else frontend.port_of(node)
    if node is None or port is None:
        address, port, weight, takes_clients = *NOWHERE, 1, False
    else:
        address, weight, takes_clients = node.address, node.weight, node.takes_clients
    disabled = "" if takes_clients else " disabled"
    place = f"{_address(address)}:{port}"
    return f"    server s{slot} {place} id {slot} weight {weight} {options}{disabled}"


def _address(address: str) -> str:
    return f"ipv6@{address}" if ":" in address else address


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
