"""A client of the server at HOLDFAST_URL, with the key of HOLDFAST_API_KEY. It knows paths and JSON, no domain.

It raises `InvalidRequest` if the command must change, and `Unavailable` if a retry may succeed.
"""

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, cast
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
import typer

from cli.command_table import refuse_unknown_settings
from shared.domain.errors import InvalidRequest, NotFound, Unavailable

Record = dict[str, Any]
"""A JSON object of the API."""

UrlOption = Annotated[str, typer.Option("--url", envvar="HOLDFAST_URL", help="Address of the server.")]
DEFAULT_URL = "http://127.0.0.1:8283"

ANSWER_S = 60.0
SILENCE_S = 90.0
"""Seconds without data after which a stream is lost. The server pings after half a minute of silence."""

PAGE = 100


class ConnectionLost(Unavailable):
    """The connection broke; the server may have executed the request."""


class Silence(Unavailable):
    """The server accepted the request, but sent no data in time."""


class Server:
    """A client of one server."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http

    def get(self, path: str, **parameters: object) -> Any:
        """Returns the answer. Like all methods here it raises `NotFound`, `InvalidRequest` and `Unavailable`."""
        return self._asked("GET", path, parameters=parameters)

    def post(self, path: str, body: Record | None = None) -> Any:
        """Returns the answer. `path` may have a query."""
        return self._asked("POST", path, body=body or {})

    def patch(self, path: str) -> Any:
        """Returns the answer."""
        return self._asked("PATCH", path, body={})

    def delete(self, path: str) -> Any:
        """Returns the answer."""
        return self._asked("DELETE", path)

    def pages(self, path: str, limit: int, **parameters: object) -> Iterator[Record]:
        """Yields the first `limit` rows of a list, which it reads page by page."""
        after: str | None = None
        while limit > 0:
            rows = self.get(path, limit=min(limit, PAGE), after=after, **parameters)
            yield from rows
            if len(rows) < min(limit, PAGE):
                return
            limit, after = limit - len(rows), rows[-1]["id"]

    def frames(
        self, path: str, body: Record | None, *, silence_s: float = SILENCE_S, key: str | None = None
    ) -> Generator[Record]:
        """Yields the frames of a stream to its end; without a body the path is read. `key` lets the server recognise a
        repeated request. Raises `ConnectionLost` if the stream breaks before its end, and `Silence` after `silence_s`
        seconds without data."""
        headers = {"X-Holdfast-Status-Events": "true"} | ({} if key is None else {"Idempotency-Key": key})
        for data in self._data("GET" if body is None else "POST", path, silence_s, json=body, headers=headers):
            if data == "[DONE]":
                return
            yield _decoded(data)
        raise ConnectionLost("the stream broke off")

    def events(self, path: str) -> Generator[Record]:
        """Yields the events of a GET stream until the connection ends. Raises as `frames` does."""
        for data in self._data("GET", path, SILENCE_S):
            yield _decoded(data)

    def _data(self, method: str, path: str, silence_s: float, **request: Any) -> Generator[str]:
        timeout = httpx2.Timeout(ANSWER_S, read=silence_s)
        with self._errors(), self._http.stream(method, path, timeout=timeout, **request) as answer:
            if not answer.is_success:
                answer.read()
            _refuse(answer)
            for line in _lines(answer.iter_bytes()):
                if line.startswith("data: "):
                    yield line.removeprefix("data: ")

    def _asked(
        self, method: str, path: str, *, parameters: Mapping[str, object] | None = None, body: Record | None = None
    ) -> Any:
        given = {name: _text(value) for name, value in (parameters or {}).items() if value is not None}
        with self._errors():
            answer = self._http.request(method, path, params=given or None, json=body)
        _refuse(answer)
        return _decoded(answer.text) if answer.content else None

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except httpx2.ReadTimeout as error:
            raise Silence(f"{self._http.base_url} has sent no data for too long") from error
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise InvalidRequest(f"the request cannot be sent ({error}): change its address or arguments") from error
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError) as error:
            raise ConnectionLost(f"{self._http.base_url} closed the connection") from error
        except httpx2.TransportError as error:
            why = str(error) or type(error).__name__
            raise Unavailable(
                f"{self._http.base_url} does not answer ({why}): start the server, or set HOLDFAST_URL to its address"
            ) from error


@contextmanager
def server_at(url: str) -> Generator[Server]:
    """Yields a client of the server at this address. Raises `InvalidRequest` for a malformed address or key."""
    refuse_unknown_settings()
    if not _is_address(url):
        raise InvalidRequest(f"HOLDFAST_URL (--url) is {url[:100]!r}: write it as {DEFAULT_URL}")
    key = os.environ.get("HOLDFAST_API_KEY", "")
    if not key.isascii() or not key.isprintable():
        raise InvalidRequest("HOLDFAST_API_KEY has a character that no key has: copy the key again")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx2.Client(base_url=url, headers=headers, timeout=ANSWER_S) as http:
        yield Server(http)


def segment(of_path: str) -> str:
    """Escapes an id for a path. Raises `InvalidRequest` for an empty one, which would name another path."""
    if not of_path:
        raise InvalidRequest("an id is empty: give the id of a run, an agent, a conversation or an approval")
    try:
        return quote(of_path, safe="")
    except UnicodeError as error:
        raise InvalidRequest(f"{of_path[:100]!r} is not an id: copy it again") from error


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL):
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _lines(chunks: Iterable[bytes]) -> Generator[str]:
    """Yields the lines of an event stream. Only a line feed ends them: `splitlines` would also split texts at
    characters such as U+2028."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")


def _refuse(answer: httpx2.Response) -> None:
    """Raises the error of an answer without a status of success."""
    if answer.is_success:
        return
    said = f"{_said_by(answer)} (status {answer.status_code})"
    match answer.status_code:
        case 401:
            raise InvalidRequest(f"{said}: set HOLDFAST_API_KEY to a key of this server")
        case 404:
            raise NotFound(said)
        case 429:
            raise Unavailable(said)
        case status if status < 500:
            raise InvalidRequest(said)
        case _:
            raise Unavailable(said)


def _said_by(answer: httpx2.Response) -> str:
    try:
        found = _decoded(answer.text)
    except Unavailable:
        return "the server's answer is not JSON, so it may not be Holdfast: check HOLDFAST_URL"
    said = cast("Record", found) if isinstance(found, dict) else {}
    detail = said.get("message") or said.get("detail", found)
    return detail if isinstance(detail, str) else msgspec.json.encode(detail).decode()


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise Unavailable("the server's answer is not JSON, so it may not be Holdfast: check HOLDFAST_URL") from error


def _text(value: object) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
