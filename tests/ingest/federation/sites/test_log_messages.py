"""Whatever a neighbour sends is read or refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.federation.envelope import InvalidEnvelope
from ingest.federation.sites.links.words import InvalidWord, decode
from ingest.federation.sites.streams.log_messages import (
    RECORD,
    of_offer,
    of_publish,
    to_publish,
    to_record,
)
from ingest.protocol.packets import Publish
from tests.ingest.federation.sites.test_outlet import outlet, record, sent

FULL = {"level": 5, "id": "00" * 16, "client_id": "c", "origin": "a/g", "username": "u"}


def publish(said: str) -> Publish:
    """Return a PUBLISH of a site with another text about the record."""
    (found,) = sent(outlet(), record(0))
    properties = found.properties.copy()
    properties["user_property"] = [properties["user_property"][0], (RECORD, said), ("own", "1")]
    return Publish(found.topic_name, found.payload, 1, properties=properties)


def test_a_record_comes_back_from_the_wire() -> None:
    carried = of_publish(publish(json.dumps(FULL)), prefix="federator")
    assert carried.message.properties == {"user_property": [("own", "1")]}
    again = of_publish(to_publish(carried, 1, prefix="federator"), prefix="federator")
    assert again == carried
    key, value, headers = to_record(carried, "t", "local/x", retain=False)
    assert (key, value) == (b"t/local/x", b"0")
    assert dict(headers)["username"] == b"u"


@pytest.mark.parametrize(
    "changes",
    [
        {"level": 9},
        {"level": None},
        {"id": "00"},
        {"id": "no"},
        {"client_id": None},
        {"origin": 5},
        {"username": ["u"]},
    ],
)
def test_what_says_something_odd_of_the_record_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidEnvelope):
        of_publish(publish(json.dumps(FULL | changes)), prefix="federator")


@given(
    st.text(max_size=60)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (
        lambda: of_publish(publish(text), prefix="federator"),
        lambda: decode(text.encode(errors="replace")),
        lambda: of_offer(Publish("federator/offer", text.encode(errors="replace"), 1)),
    ):
        try:
            read()
        except (InvalidEnvelope, InvalidWord):
            continue


def test_a_publish_without_its_record_is_refused() -> None:
    (found,) = sent(outlet(), record(0))
    properties = found.properties.copy()
    properties["user_property"] = properties["user_property"][:1]
    with pytest.raises(InvalidEnvelope):
        of_publish(Publish(found.topic_name, b"", 1, properties=properties), prefix="federator")
