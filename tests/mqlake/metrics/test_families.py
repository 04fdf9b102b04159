import pytest
from prometheus_client.samples import Sample

from mqlake.metrics.families import Families
from mqlake.metrics.names import MOST, OTHER


def samples(families: Families) -> list[Sample]:
    return [sample for family in families for sample in family.samples]


def test_values_keep_their_labels_and_those_of_the_same_are_added_up() -> None:
    families = Families()
    families.add("mqlake_gateway_messages_received_total", 3, "0")
    families.add("mqlake_gateway_messages_received_total", 4, "1")
    families.add("mqlake_gateway_messages_received_total", 5, "1")
    families.add("mqlake_gateway_clients", 2)
    assert [(one.name, one.labels, one.value) for one in samples(families)] == [
        ("mqlake_gateway_messages_received_total", {"qos": "0"}, 3),
        ("mqlake_gateway_messages_received_total", {"qos": "1"}, 9),
        ("mqlake_gateway_clients", {}, 2),
    ]


def test_a_histogram_is_cumulative() -> None:
    families = Families()
    for _ in range(2):
        families.add_histogram("mqlake_gateway_accept_seconds", (0.1, 1.0), [3, 0, 2], 4.5)
    assert [(one.name, one.labels.get("le"), one.value) for one in samples(families)] == [
        ("mqlake_gateway_accept_seconds_bucket", "0.1", 6),
        ("mqlake_gateway_accept_seconds_bucket", "1.0", 6),
        ("mqlake_gateway_accept_seconds_bucket", "+Inf", 10),
        ("mqlake_gateway_accept_seconds_count", None, 10),
        ("mqlake_gateway_accept_seconds_sum", None, 9.0),
    ]


def test_names_that_are_not_documented_are_refused() -> None:
    families = Families()
    with pytest.raises(KeyError):
        families.add("mqlake_something_else", 1)
    with pytest.raises(ValueError, match="labels"):
        families.add("mqlake_gateway_clients", 1, "a label")
    with pytest.raises(ValueError, match="histogram"):
        families.add("mqlake_gateway_accept_seconds", 1)


def test_what_has_too_many_labels_is_added_up() -> None:
    families = Families()
    for number in range(MOST + 5):
        families.add("mqlake_query_active", 1, f"q{number}", "default", f"r{number}")
    families.add("mqlake_query_active", 1, "q0", "default", "r0")
    found = {one.labels["query"]: one.value for one in samples(families)}
    assert len(found) == MOST + 1
    assert (found[OTHER], found["q0"]) == (5, 2)
