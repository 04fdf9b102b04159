"""Sites that stay autonomous and get each other's messages: `docs/federation.md`.

`core` is the state machine of one site, with no socket and no clock; it is made of `meshes` (who
sends to whom), `chains` (order and duplicates), `store` (messages that neighbours may ask for
again) and `filters`. `packets` and `envelope` are its formats on the wire. `service` runs it
between MQTT brokers, with a `links` and a `client` for each.
"""
