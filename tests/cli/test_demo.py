import re
from collections import defaultdict
from itertools import islice, pairwise
from pathlib import Path

from cli.system._devices import TOPIC_FILTER, DemoOutcome, DemoReading, readings
from mqlake.topics.matching import filter_matches
from mqlake.topics.names import validate_topic_name


def test_the_readings_are_a_year_of_hours_of_two_cities() -> None:
    everything = list(readings())
    assert len(everything) == 2 * 8759  # 8,760 hours less the one that summer time skips
    assert {reading.at.year for reading in everything} == {2010}
    assert all(10 < reading.fahrenheit < 110 for reading in everything)
    assert len({(reading.topic_name, reading.at) for reading in everything}) == len(everything)


def test_each_device_is_a_month_of_a_city_in_the_order_of_time() -> None:
    devices: dict[str, list[DemoReading]] = defaultdict(list)
    for reading in readings():
        devices[reading.topic_name].append(reading)
    assert len(devices) == 24
    for topic_name, series in devices.items():
        validate_topic_name(topic_name)
        assert filter_matches(TOPIC_FILTER, topic_name)
        assert all(earlier.at < later.at for earlier, later in pairwise(series))


def test_the_devices_take_turns() -> None:
    first = list(islice(readings(), 24))
    assert len({reading.topic_name for reading in first}) == 24
    assert {reading.at.day for reading in first} == {1}


def test_the_query_finds_the_publishers_of_one_run_only() -> None:
    outcome = DemoOutcome(
        "1a2b", published=1, acknowledged=1, received=1, duplicates=0, seconds=1.0
    )
    assert outcome.sql == "SELECT count(*) FROM messages WHERE client_id LIKE 'demo-1a2b-%'"


def test_the_rule_for_hot_hours_finds_some_in_what_the_demo_publishes() -> None:
    rules = (Path(__file__).parents[2] / "conf" / "rules" / "demo.yaml").read_text("utf-8")
    found = re.search(r"payload\.temperature > (\d+)", rules)
    assert found is not None
    published = list(islice(readings(), 2400))  # as `bin/mqlake demo` does unless told otherwise
    hot = [reading for reading in published if reading.fahrenheit > int(found[1])]
    assert {reading.city for reading in hot} == {"seattle", "san-francisco"}
    assert 50 < len(hot) < len(published) / 10
