from pathlib import Path

import pytest

from tests.ingest.gateway.transcripts import (
    Transcript,
    parse,
    play,
    read,
    rewrite,
    to_text,
)

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parents[2] / "transcripts"
TRANSCRIPTS = [read(path) for path in sorted(FOLDER.glob("*.txt"))]
PLAYED = [
    pytest.param(transcript, level, id=f"{transcript.path.stem} {level}")
    for transcript in TRANSCRIPTS
    for level in transcript.levels
]


@pytest.mark.parametrize(("transcript", "level"), PLAYED)
async def test_the_gateway_answers_as_written(
    transcript: Transcript, level: str, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--rewrite"):
        await play(transcript, level)
    elif level == transcript.levels[0]:
        await rewrite(transcript)


@pytest.mark.parametrize(
    "line",
    [
        "CONNECT alice clean_start=no keep_alive=60 username=al session_expiry_interval=100",
        "CONNECT '' will.topic_name=w will.payload=x will.retain=yes will.content_type=t",
        "CONNACK session_present=yes server_keep_alive=7",
        "CONNACK NOT_AUTHORIZED",
        "PUBLISH a/b hello qos=1 retain=yes dup=yes packet_id=7 user_property=a:b user_property=a:",
        "PUBLISH '' 0x00ff topic_alias=1 correlation_data=0x00",
        "PUBLISH a '' subscription_identifier=1 subscription_identifier=2",
        "PUBACK 1 QUOTA_EXCEEDED",
        "SUBSCRIBE 1 subscription_identifier=3 | a/+ qos=1 no_local=yes | $share/g/b",
        "SUBACK 1 | GRANTED_QOS_1 | NOT_AUTHORIZED",
        "UNSUBSCRIBE 2 | a/+ | b",
        "DISCONNECT DISCONNECT_WITH_WILL_MESSAGE session_expiry_interval=0",
        "PINGREQ",
    ],
)
def test_a_packet_is_written_as_it_is_read(line: str) -> None:
    assert to_text(parse(line)) == line
