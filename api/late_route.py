"""A route of which FastAPI works out what it declares when it is first asked, and not when its module is imported.

FastAPI walks each route's dependencies anew and makes a validator of every parameter that it meets. For all routes
together that was a third of a server's start, and a deployment uses few of them.
"""

from collections.abc import Callable
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import Route

from api.long_answers import with_long_answers


class LateRoute(APIRoute):
    """Knows at once what finds it: its path, methods and name. Whoever asks for anything else has FastAPI read the
    declaration first; what is wrong with it is raised then, once for each that asks."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **declared: Any) -> None:
        self._declared: dict[str, Any] = {"path": path, "endpoint": endpoint, **declared}
        Route.__init__(
            self,
            path,
            endpoint,
            methods=list(declared.get("methods") or ["GET"]),
            name=declared.get("name"),
            include_in_schema=declared.get("include_in_schema", True),
        )
        # As FastAPI has it. Starlette adds HEAD to GET, and has made an application of its own of the endpoint.
        self.methods = {method.upper() for method in declared.get("methods") or ["GET"]}
        del self.app

    def __getattr__(self, name: str) -> Any:
        # Python asks here for what is not there yet.
        if name.startswith("__") or "_declared" not in self.__dict__:
            raise AttributeError(name)
        self.read()
        return getattr(self, name)

    def read(self) -> None:
        """Reads the declaration. All of a route is there afterwards."""
        declared = self._declared
        declared["endpoint"] = with_long_answers(declared["endpoint"])
        super().__init__(**declared)
        del self._declared
