"""Routes that read forms, and which forms they read."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.params import Form
from fastapi.routing import APIRoute

MULTIPART = "multipart/form-data"


class MultipartRoute(APIRoute):
    """A route whose form comes in parts: everything else is a 415 before it is read.

    A parser of forms in one line steps through their separators one by one, and a body has room for millions.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute.get_route_handler`."""
        handler = super().get_route_handler()
        if not any(isinstance(field.field_info, Form) for field in self.dependant.body_params):
            return handler

        async def of_parts_only(request: Request) -> Response:
            given = request.headers.get("content-type", "")
            if given.partition(";")[0].strip().lower() != MULTIPART:
                raise HTTPException(415, f"Content-Type is {given[:100]!r}: send the form as {MULTIPART}")
            return await handler(request)

        return of_parts_only
