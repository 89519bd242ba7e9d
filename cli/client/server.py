"""The server that a command asks: HOLDFAST_URL, with the key of HOLDFAST_API_KEY. It knows paths and JSON, no domain.

An answer that says what to ask otherwise is `InvalidRequest`; no answer, and one that may be another next time, is
`Unavailable`.
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
"""An object of the API, as its JSON has it."""

UrlOption = Annotated[str, typer.Option("--url", envvar="HOLDFAST_URL", help="Address of the server.")]
DEFAULT_URL = "http://127.0.0.1:8283"

ANSWER_S = 60.0
SILENCE_S = 90.0
"""Streams have a ping in every silence of half a minute."""

PAGE = 100


class ConnectionLost(Unavailable):
    """What was asked has arrived, or has not."""


class Silence(Unavailable):
    """The server is there, and says nothing."""


class Server:
    """A client of one server."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http

    def get(self, path: str, **parameters: object) -> Any:
        """The answer. Raises `NotFound`, `InvalidRequest` and `Unavailable`, as do all of these."""
        return self._asked("GET", path, parameters=parameters)

    def post(self, path: str, body: Record | None = None, **headers: str) -> Any:
        """The answer; `headers` are named with underscores, and `path` may have a query."""
        return self._asked("POST", path, body=body or {}, headers=headers)

    def delete(self, path: str) -> Any:
        """The answer."""
        return self._asked("DELETE", path)

    def pages(self, path: str, limit: int, **parameters: object) -> Iterator[Record]:
        """The first `limit` rows of a list, page by page."""
        after: str | None = None
        while limit > 0:
            rows = self.get(path, limit=min(limit, PAGE), after=after, **parameters)
            yield from rows
            if len(rows) < min(limit, PAGE):
                return
            limit, after = limit - len(rows), rows[-1]["id"]

    def frames(self, path: str, body: Record, *, silence_s: float = SILENCE_S, **named: str) -> Generator[Record]:
        """The frames of a stream to its end. Raises `Unavailable` where the connection breaks before that, and
        `Silence` after `silence_s` seconds without a word. Further headers are named with underscores."""
        headers = {"X-Holdfast-Status-Events": "true", **_headers(named)}
        timeout = httpx2.Timeout(ANSWER_S, read=silence_s)
        with (
            self._errors(),
            self._http.stream("POST", path, json=body, headers=headers, timeout=timeout) as answer,
        ):
            if not answer.is_success:
                answer.read()
            _refuse(answer)
            for line in _lines(answer.iter_bytes()):
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield _decoded(line.removeprefix("data: "))
        raise ConnectionLost("the stream broke off")

    def _asked(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, object] | None = None,
        body: Record | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        given = {name: _text(value) for name, value in (parameters or {}).items() if value is not None}
        named = _headers(headers or {})
        with self._errors():
            answer = self._http.request(method, path, params=given or None, json=body, headers=named)
        _refuse(answer)
        return _decoded(answer.text)

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except httpx2.ReadTimeout as error:
            raise Silence(f"{self._http.base_url} has been silent for too long") from error
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise InvalidRequest(f"what was given cannot be sent ({error})") from error
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError) as error:
            raise ConnectionLost(f"{self._http.base_url} has ended the connection") from error
        except httpx2.TransportError as error:
            why = str(error) or type(error).__name__
            raise Unavailable(
                f"{self._http.base_url} does not answer ({why}): is the server there? Set HOLDFAST_URL"
            ) from error


@contextmanager
def server_at(url: str) -> Generator[Server]:
    """The server at this address, for a block. Raises `InvalidRequest` for what is no address."""
    refuse_unknown_settings()
    if not _is_address(url):
        raise InvalidRequest(f"HOLDFAST_URL (--url) is {url[:100]!r}: write it as {DEFAULT_URL}")
    key = os.environ.get("HOLDFAST_API_KEY", "")
    if not key.isascii() or not key.isprintable():
        raise InvalidRequest("HOLDFAST_API_KEY has a character that no key has")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx2.Client(base_url=url, headers=headers, timeout=ANSWER_S) as http:
        yield Server(http)


def segment(of_path: str) -> str:
    """An id as a part of a path. Raises `InvalidRequest` for an empty one, with which the path would be another."""
    if not of_path:
        raise InvalidRequest("an id is empty")
    try:
        return quote(of_path, safe="")
    except UnicodeError as error:
        raise InvalidRequest(f"{of_path[:100]!r} is no id") from error


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL):
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _headers(named: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in named.items()}


def _lines(chunks: Iterable[bytes]) -> Generator[str]:
    """The lines of an event stream. Nothing but a line feed ends them: texts have other characters that do so
    elsewhere, such as U+2028."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")


def _refuse(answer: httpx2.Response) -> None:
    """Raises what an answer says that is none of the asked kind."""
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
        return "the server's answer is no JSON: is it Holdfast?"
    said = cast("Record", found) if isinstance(found, dict) else {}
    detail = said.get("message") or said.get("detail", found)
    return detail if isinstance(detail, str) else msgspec.json.encode(detail).decode()


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise Unavailable("the server's answer is no JSON: is it Holdfast?") from error


def _text(value: object) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
