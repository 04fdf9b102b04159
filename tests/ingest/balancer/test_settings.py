"""What is missing before any client is placed is said."""

from ingest.balancer.settings import BalancerSettings

PROXY = {"name": "proxy-1", "runtime_api": "/run/haproxy.sock"}
FRONTEND = {"name": "mqtt", "bind": "*:1883"}


def test_settings_that_lack_all_say_what_to_set() -> None:
    said = BalancerSettings().lacking()
    assert [one.partition(":")[0] for one in said] == [
        "no nodes",
        "no HAProxy to tell",
        "no port for clients",
    ]
    assert all("settings file" in one for one in said)


def test_settings_with_all_lack_nothing() -> None:
    given = {"proxies": [PROXY], "frontends": [FRONTEND]}
    node = {"name": "node-1", "host": "127.0.0.1", "port": 1883}
    ways = (
        {"discovery": {"gateways": True}},
        {"discovery": {"dns": [{"name": "mqtt.example"}]}},
        {"nodes": [node]},
    )
    for way in ways:
        assert BalancerSettings.model_validate({**given, **way}).lacking() == []
