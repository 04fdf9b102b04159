import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.ingest.balancer.harness import cut_connections


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run coroutine tests on the event loop that the balancer uses."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def haproxy() -> str:
    """The program, HAProxy 2.6 of Debian in CI."""
    found = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        pytest.fail("haproxy is missing: apt install haproxy", pytrace=False)
    return found


@pytest.fixture(scope="session")
def mosquitto() -> str:
    """The program, as a broker that is not ours."""
    found = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        pytest.fail("mosquitto is missing: apt install mosquitto", pytrace=False)
    return found


@pytest.fixture(autouse=True)
async def _connections_end(anyio_backend: Any) -> AsyncIterator[None]:
    yield
    await cut_connections()
