"""Routes that all applications of a test run have in common.

An application makes its routes out at its first request, which takes 0.13 s: most of what a test
of the API takes. They are the same for all, as each finds its parts by the application that is
asked.
"""

from typing import Final

from fastapi import FastAPI
from starlette.routing import BaseRoute, Route

from api.app import create_app
from api.wiring.services import Services

_included: Final[dict[int, list[BaseRoute]]] = {}
"""By the largest body that is taken, which they are made with."""


def application(services: Services) -> FastAPI:
    """Return what `create_app` does, with the routes of the first one that was made so."""
    app = create_app(services)
    own = [one for one in app.router.routes if isinstance(one, Route)]  # the OpenAPI document
    included = [one for one in app.router.routes if not isinstance(one, Route)]
    shared = _included.setdefault(services.settings.max_body_bytes, included)
    app.router.routes[:] = [*own, *shared]
    return app
