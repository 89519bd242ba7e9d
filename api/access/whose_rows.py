"""Whose rows a request may see, below everything that its route asks for.

Routes and services name the project in what they ask of the stores. This is the wall behind: the stores' database asks
here, at each use, for whom the request acts, as its key has said, whatever the route has asked for. Work that is no
request's has no project, and is refused: what the API does for all projects together, it does on a database of its own.
"""

from contextvars import ContextVar, Token

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.domain.ids import ProjectId

NOBODYS = "\x1f"
"""For a request of which its key may see nothing. No project has this name; an empty one would mean everybody's."""

_PROJECT: ContextVar[ProjectId | None] = ContextVar("project of the request", default=None)


def project_of_request() -> str:
    """The project for which the present task acts. Raises `LookupError` when it acts for none."""
    project_id = _PROJECT.get()
    if project_id is None:
        raise LookupError("no caller's project is known here: this is outside of a request, or before its key was read")
    return project_id or NOBODYS


def act_for(project_id: ProjectId | None) -> Token[ProjectId | None]:
    """Lets what follows in this task act for a project, or for none. With the token, `ContextVar.reset` undoes it."""
    return _PROJECT.set(project_id)


class CallersRows:
    """Lets each request act for the project of its caller, whom `Authentication` has found, or for none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller = scope.get("state", {}).get("caller")
        before = act_for(None if caller is None else caller.project_id)
        try:
            await self._app(scope, receive, send)
        finally:
            _PROJECT.reset(before)
