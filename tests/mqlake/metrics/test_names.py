import re

from mqlake.metrics.names import BY_PROCESS, EVERY_PROCESS, NAMES, TENANTS

UNITS = {"seconds", "bytes", "records", "second", "messages", "outputs", "rows", "percent"}
COUNTS = {
    *("connections", "clients", "sessions", "subscriptions", "wills", "readers", "publishers"),
    *("healthy", "info", "active", "up", "nodes", "weight", "level", "step", "draining", "full"),
    *("checked", "broken", "unknown", "there", "packets", "meshes", "interests", "streams", "gaps"),
    *("shards", "talkers", "topics", "current", "links", "sites", "running", "uses", "behind"),
}
"""What a gauge without a unit counts or says."""


def test_no_name_stands_for_two_metrics() -> None:
    tables = (EVERY_PROCESS, *BY_PROCESS.values(), TENANTS)
    assert sum(map(len, tables)) == len(NAMES)


def test_names_are_prometheus_names_with_their_unit() -> None:
    for name, metric in NAMES.items():
        assert re.fullmatch(r"mqlake(_[a-z]+)+", name), name
        last = name.rpartition("_")[2]
        match metric.kind:
            case "counter":
                assert last == "total", name
            case "histogram":
                assert last == "seconds", name
            case "gauge":
                assert last in UNITS | COUNTS, name


def test_words_say_what_is_counted() -> None:
    for metric in NAMES.values():
        assert metric.words
        assert not metric.words.endswith(".")
