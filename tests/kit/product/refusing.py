"""An application for tests of single middlewares: its dialects render their refusals."""

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from api.application import ERROR_SHAPES
from api.errors import add_error_answers


def refusing_app() -> FastAPI:
    """An application without routes that can render errors."""
    app = FastAPI()
    add_error_answers(app, ERROR_SHAPES)
    return app


def in_an_application(middleware: ASGIApp) -> ASGIApp:
    """The middleware as it stands in an application."""
    app = refusing_app()

    async def within(scope: Scope, receive: Receive, send: Send) -> None:
        await middleware({**scope, "app": app}, receive, send)

    return within
