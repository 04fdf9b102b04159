"""Routes ask for parts by their types."""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from starlette.requests import HTTPConnection

from api.app import create_app
from api.settings import ApiSettings
from api.web.problems import Problem
from api.wiring import dependencies
from api.wiring.services import make_services
from tests.api.conftest import Api
from tests.api.test_api import TOKEN

PARTS = {
    name: get_args(found)
    for name, found in vars(dependencies).items()
    if get_origin(found) is Annotated and name != "State"
}
READ = {
    *("KnownRules", "Cache", "KnownAccess", "KnownAlarms", "KnownBans", "KnownReferences"),
    *("KnownRights", "KnownTenants", "ChangeBans", "ChangeRights", "ChangeTenants"),
    *("ChangeRules", "ChangeSchemas", "ChangeReferences", "ChangeAlarms"),
}
"""Those of which a part would look like all."""


def handed_out(app: Any, name: str) -> Any:
    asks: Any = PARTS[name][1].dependency
    return asyncio.run(asks(HTTPConnection({"type": "http", "app": app})))


def test_a_part_is_of_the_type_that_it_is_asked_for_by(api: Api) -> None:
    assert set(PARTS) > READ
    for name, (kind, _) in PARTS.items():
        assert isinstance(handed_out(api.client.app, name), kind), name


def test_what_has_not_been_read_is_not_handed_out(tmp_path: Path) -> None:
    (tmp_path / "api-token").write_text(TOKEN)
    settings = ApiSettings(data_dir=tmp_path, token_file=tmp_path / "api-token")
    app = create_app(make_services(settings))
    assert {name for name in PARTS if is_refused(app, name)} == READ


def is_refused(app: Any, name: str) -> bool:
    try:
        handed_out(app, name)
    except Problem as problem:
        return problem.status == HTTPStatus.SERVICE_UNAVAILABLE
    return False
