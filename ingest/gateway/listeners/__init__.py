"""Listeners for clients: TCP, TLS, WebSocket, Secure WebSocket and Unix sockets, also by a proxy.

`Listeners` opens them all and hands each connection, once its MQTT bytes can flow, to a protocol
made for it. One module for each part: `settings`, `sockets` (opening addresses), `accepting`
(everything before a connection's first byte: `proxy_protocol`, the handshake of TLS by
`certificates`), `websocket` (frames), `transports` (facts about a connection).
"""
