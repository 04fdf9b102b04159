from typing import Any

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """One event loop for the gateway that the cases of a file attack one after the other."""
    return "asyncio", {"use_uvloop": True}
