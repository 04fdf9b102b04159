import pytest

from mqlake.bench.programs import Programs, build_programs


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Return the load programs; the fault tests need a C compiler as well."""
    return build_programs(tmp_path_factory.mktemp("programs"))
