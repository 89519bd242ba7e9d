"""An application for middlewares that are tested by themselves: what they refuse is said in its dialects."""

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from api.application import ERROR_SHAPES
from api.errors import add_error_answers


def refusing_app() -> FastAPI:
    """An application without a route that knows how errors are said."""
    app = FastAPI()
    add_error_answers(app, ERROR_SHAPES)
    return app


def in_an_application(middleware: ASGIApp) -> ASGIApp:
    """The middleware as it stands in an application."""
    app = refusing_app()

    async def within(scope: Scope, receive: Receive, send: Send) -> None:
        await middleware({**scope, "app": app}, receive, send)

    return within
