"""Writes one HTTP/1.1 request, and parses one response. No I/O.

httptools, a C library, parses the response. With h11, parsing took most of a token's cost in the worker.
"""

from http import HTTPStatus

import httpx2
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MOST_OVERHEAD = 100 * 1024
"""The most bytes of a response in a row that contain no part of its body: its head, and the framing of the body."""


class OutgoingRequest:
    """The bytes of a request. Raises httpx2's errors if it cannot be sent."""

    def __init__(self, request: httpx2.Request) -> None:
        self.is_last = False
        """The request announces that it is the last on this connection."""
        self.has_answer_body = request.method != "HEAD"
        self._is_chunked = False
        self._missing = 0
        """Announced bytes of the body that are still missing."""
        if request.method == "CONNECT":
            raise httpx2.UnsupportedProtocol("a tunnel cannot be asked for here")
        lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
        for name, value in request.headers.raw:
            lines.append(b"%b: %b" % (name, value))
            self._heed(name.lower(), value)
        self.head = b"\r\n".join((*lines, b"", b""))
        ends = len(lines) + 1
        if self.head.count(b"\n") != ends or self.head.count(b"\r") != ends or b"\0" in self.head:
            raise httpx2.LocalProtocolError("a header of the request has a line break or a zero in it")

    def framed(self, data: bytes) -> bytes:
        """The encoded form of a piece of the body."""
        if self._is_chunked:
            # An empty chunk would end the body.
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        self._missing -= len(data)
        if self._missing < 0:
            raise httpx2.LocalProtocolError("the request's body is longer than was announced")
        return data

    def end(self) -> bytes:
        """Returns the bytes after the body."""
        if self._missing:
            raise httpx2.LocalProtocolError("the request's body is shorter than was announced")
        return b"0\r\n\r\n" if self._is_chunked else b""

    def _heed(self, name: bytes, value: bytes) -> None:
        match name:
            case b"content-length":
                self._missing = int(value)
            case b"transfer-encoding":
                self._is_chunked = True
            case b"connection":
                self.is_last = value.lower() == b"close"
            case b"upgrade":
                raise httpx2.UnsupportedProtocol("another protocol cannot be asked for here")
            case _:
                pass


class IncomingResponse:
    """The received part of a response."""

    def __init__(self, *, has_body: bool) -> None:
        self.status_code = 0
        self.reason = b""
        self.version = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = False
        self.is_whole = False
        self.keeps_alive = False
        """Whether the connection may be used for another request when this response is whole."""
        self.failure: httpx2.TransportError | None = None
        """Why it will never be complete."""
        self.unread = 0
        """Bytes of the body that the reader has not read yet."""
        self._body: list[bytes] = []
        self._has_body = has_body
        self._ends_with_connection = True
        self._overhead = 0
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        # Some servers send these, and clients accept them: a length besides chunks, lines that end in LF alone, and
        # spaces after the size of a chunk.
        self._parser.set_dangerous_leniencies(
            lenient_chunked_length=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )

    @property
    def is_over(self) -> bool:
        return self.is_whole or self.failure is not None

    def feed(self, data: bytes) -> None:
        """Reads bytes from the server."""
        if self._parser is None:
            self.keeps_alive = False  # it sends more than the response, or bytes that cannot be parsed
            return
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.keeps_alive = False
            self.fail(httpx2.RemoteProtocolError(f"the response cannot be read: {error}"))
        if self._overhead > MOST_OVERHEAD:
            self.fail(httpx2.RemoteProtocolError(f"the response has more than {MOST_OVERHEAD} bytes beside its body"))
        if self.is_over:
            # The parser refers to this object, so only the garbage collector would delete the two.
            self._parser = None

    def end(self) -> None:
        """The server has closed the connection."""
        if not self.has_head:
            self.fail(httpx2.RemoteProtocolError("Server disconnected without sending a response."))
        elif self._ends_with_connection:
            self._complete(keeps_alive=False)
        else:
            self.fail(httpx2.RemoteProtocolError("the server hung up in the middle of its response"))
        self.keeps_alive = False

    def fail(self, error: httpx2.TransportError) -> None:
        """Ends the response with an error."""
        if not self.is_over:
            self.failure = error

    def take(self) -> bytes:
        """Returns the bytes of the body since the last call."""
        pieces, self._body, self.unread = self._body, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def on_message_begin(self) -> None:
        if self.is_whole:
            self.keeps_alive = False

    def on_status(self, reason: bytes) -> None:
        if not self.has_head:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self.has_head or self._parser is None:
            return
        self.status_code = self._parser.get_status_code()
        if self.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.fail(httpx2.RemoteProtocolError("the server changes to another protocol, which nobody asked for"))
        elif self.status_code < HTTPStatus.OK:
            # "Continue", or a hint: the response itself follows.
            self.headers, self.reason = [], b""
        else:
            self.version = b"HTTP/" + self._parser.get_http_version().encode("ascii")
            self._heed_framing()

    def on_body(self, piece: bytes) -> None:
        if not self.is_whole:
            self._body.append(piece)
            self.unread += len(piece)
            self._overhead = 0

    def on_message_complete(self) -> None:
        if self.has_head and self._parser is not None and not self.is_whole:
            self._complete(keeps_alive=self._parser.should_keep_alive())

    def _heed_framing(self) -> None:
        for name, value in self.headers:
            lower = name.lower()
            if lower == b"transfer-encoding" and value.lower() != b"chunked":
                coding = value.decode("ascii", "replace")
                self.fail(httpx2.RemoteProtocolError(f"the response has a transfer encoding {coding!r}"))
                return
            if lower in (b"content-length", b"transfer-encoding"):
                self._ends_with_connection = False
        self.has_head = True
        if not self._has_body:
            # The parser does not know the request's method, and waits for a body.
            self._complete(keeps_alive=False)

    def _complete(self, *, keeps_alive: bool) -> None:
        if not self.is_over:
            self.is_whole, self.keeps_alive = True, keeps_alive
