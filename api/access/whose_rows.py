"""Whose rows a request may see, below everything that its route asks for.

Routes and services name the project in what they ask of the stores. This is the wall behind: the stores' database asks
here, at each use, for whom the request acts, as its key has said, whatever the route has asked for. Work that is no
request's has no project, and is refused: what the API does for all projects together, it does on a database of its own.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token

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


@contextmanager
def acting_for(project_id: ProjectId | None) -> Generator[None]:
    """`act_for` for the length of the block."""
    before = act_for(project_id)
    try:
        yield
    finally:
        _PROJECT.reset(before)
