"""Where clients come in: TCP, TLS, WebSocket, Secure WebSocket and Unix sockets, also by a proxy.

`Listeners` opens them all and hands each connection, once its MQTT bytes can flow, to a protocol
made for it. A module, an idea: `settings` what may be configured, `sockets` how addresses are
opened, `accepting` what comes before a connection's first byte (`proxy_protocol`, the handshake of
TLS by `certificates`), `websocket` the frames, `transports` what a connection says of itself.
"""
