"""The control plane that places MQTT clients over gateways, by way of HAProxy.

Pure: `weights`, `overload`, `health`, `placement`, `snapshot`, `fleet`, `loads`, `simulation`,
`haproxy.configuration`, `haproxy.commands`. The others carry out their decisions.
"""
