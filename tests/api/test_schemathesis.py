"""Schemathesis asks every operation of the OpenAPI document, rightly and wrongly.

Against the application without a log: what it would read is put in, what it writes is a list.
"""

from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from api.access.limits import RateLimiter
from tests.api.conftest import AUTHORIZED, memory_api, subscription

pytestmark = pytest.mark.programs

EXAMPLES = 6
"""Of each operation."""
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,  # a finding is one of the code, not of the day
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

NOT_ASKED = [
    # There is no Spark: that it is away, 503, is an answer like others.
    not_a_server_error,
    # What a schema cannot say: topic filters, cursors, SQL.
    positive_data_acceptance,
]


def test_every_operation_is_as_the_document_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    findings: list[str] = []
    with memory_api(tmp_path_factory.mktemp("api"), live_seconds=0.01) as api:
        authenticator = api.services.access.authenticator
        endless = RateLimiter(api.clock, per_second=1.0, burst=float("inf"))
        names = ("requests", "failures", "logins", "login_addresses")
        limits: dict[str, Any] = dict.fromkeys(names, endless)
        api.put_in("access", authenticator=replace(authenticator, **limits))
        api.put_session("c1", subscriptions=[subscription("a/#")])
        api.hear("gateway-1", site="local", clients=1)
        schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", api.client.app)
        for found in schema.get_all_operations():
            assert isinstance(found, Ok), found
            operation = found.ok()

            @SETTINGS
            @given(operation.as_strategy())
            def ask(case: Any) -> None:
                answer = case.call(headers=AUTHORIZED)
                assert answer.status_code != HTTPStatus.INTERNAL_SERVER_ERROR, (
                    case.as_curl_command()
                )
                case.validate_response(answer, excluded_checks=NOT_ASKED)

            try:
                ask()
            except FailureGroup as group:
                findings += [f"{operation.label}: {one}" for one in group.exceptions]
    assert not findings, "\n\n".join(findings)
