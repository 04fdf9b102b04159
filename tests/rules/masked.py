"""Arguments of `http` as defined, and as they are shown masked: by the API and in the table."""

from typing import Any, Final

URL: Final = "https://hooks.example:8443"

MASKED: Final[list[tuple[dict[str, Any], dict[str, Any]]]] = [
    ({"url": URL}, {"url": URL}),
    ({"url": f"{URL}/"}, {"url": f"{URL}/"}),
    ({"url": f"{URL}/T000/B000/x"}, {"url": f"{URL}/***"}),
    ({"url": f"{URL}?key=abc"}, {"url": f"{URL}/***"}),
    ({"url": f"{URL}/${{site}}"}, {"url": f"{URL}/${{site}}"}),
    ({"url": f"{URL}/a?k=${{$secret.hook}}"}, {"url": f"{URL}/a?k=${{$secret.hook}}"}),
    ({"url": f"{URL}/line\nbreak"}, {"url": f"{URL}/***"}),
    ({"url": "no address"}, {"url": "***"}),
    (
        {"url": URL, "headers": {"Authorization": "Bearer TOPSECRET", "X-Site": "${site}"}},
        {"url": URL, "headers": {"Authorization": "***", "X-Site": "${site}"}},
    ),
    (
        {"url": URL, "headers": {"Authorization": "Bearer ${$secret.hook}", "X": ""}},
        {"url": URL, "headers": {"Authorization": "Bearer ${$secret.hook}", "X": ""}},
    ),
    ({"url": URL, "headers": {"X": "${a}\n${b}"}}, {"url": URL, "headers": {"X": "***"}}),
    ({"url": URL, "headers": {"X": "a\\\"${b}'"}}, {"url": URL, "headers": {"X": "***"}}),
    ({"url": URL, "body": '{"routing_key": "abc"}'}, {"url": URL, "body": "***"}),
    ({"url": URL, "body": "${.}"}, {"url": URL, "body": "${.}"}),
    (
        {
            "url": URL,
            "method": "PUT",
            "timeout_seconds": 2.5,
            "concurrency": 1,
            "verify_tls": False,
            "retry": {"attempts": 3, "give_up_after_seconds": 60.5},
        },
        {
            "url": URL,
            "method": "PUT",
            "timeout_seconds": 2.5,
            "concurrency": 1,
            "verify_tls": False,
            "retry": {"attempts": 3, "give_up_after_seconds": 60.5},
        },
    ),
]
