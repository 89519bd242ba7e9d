"""Serves the console's files from `web/` unchanged. It renders nothing and knows nothing of runs, agents or keys: the
page requests its data from the API, with a key that its user types in. So the files themselves need no key."""

import asyncio
import errno
import hashlib
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Header
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

router = APIRouter(include_in_schema=False)
documentation = APIRouter(include_in_schema=False)

WEB = Path(__file__).resolve().parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The content type of each extension. Files with other extensions are for developers of the console and are not
served."""

NO_SUCH_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
"""The system's errors for a name without a file, also for a name below a file and for a name that is too long."""

PAGES = frozenset({"agents", "approvals", "mcp-servers", "operations", "runs"})
"""The first words of the addresses behind the page's `#`."""

IfNoneMatch = Annotated[str | None, Header()]


@router.get("/console")
async def open_console(if_none_match: IfNoneMatch = None) -> Response:
    """The page."""
    return await _file("index.html", if_none_match)


@router.get("/console/{name:path}")
async def console_file(
    request: Request, name: str, if_none_match: IfNoneMatch = None, accept: Annotated[str, Header()] = ""
) -> Response:
    """A file of the page. A browser that requests an address without a file is redirected to the console; other clients
    get a 404."""
    try:
        return await _file(name, if_none_match)
    except HTTPException:
        if "text/html" not in accept:
            raise
        # People write links such as `/console/runs/run-1`, without the `#`.
        page = quote(name) if name.split("/")[0] in PAGES else ""
        return RedirectResponse(f"{request.scope['root_path']}/console#/{page}", 303)


@documentation.get("/docs")
async def open_documentation(if_none_match: IfNoneMatch = None) -> Response:
    """The page that shows `/openapi.json`, from local files, so that it works without the internet."""
    return await _file("documentation.html", if_none_match)


async def _file(name: str, known: str | None) -> Response:
    """A browser checks each time whether the file has changed, so a page never mixes two releases after an upgrade."""
    path = _path_of(name)
    if path is None:
        raise HTTPException(404, f"NOT_FOUND: the console has no file {name[:200]!r}")
    try:
        content = await asyncio.to_thread(path.read_bytes)
    except OSError as error:
        if error.errno not in NO_SUCH_FILE:
            raise
        raise HTTPException(404, f"NOT_FOUND: the console has no file {name[:200]!r}") from error
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Type": TYPES[path.suffix]}
    if known is not None and tag in known:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)


def _path_of(name: str) -> Path | None:
    """The path of the file with this name; None for a name that leads outside, or that no file can have."""
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        return None
    path = WEB.joinpath(*name.split("/"))
    return path if path.suffix in TYPES and path.is_relative_to(WEB) else None
