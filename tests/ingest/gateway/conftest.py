from typing import Any

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run coroutine tests on the event loop that the gateway uses."""
    return "asyncio", {"use_uvloop": True}
