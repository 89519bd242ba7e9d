"""What a call asks its proxy for: which host and port, read from the target of its request and nothing else."""

import re
from typing import NamedTuple

from shared.network.allowed_hosts import plain_host

HTTP_PORT = 80
LONGEST_REASON = 300

_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]@/?#\\]*\]|[^\[\]:@/?#\\]+)(:(?P<port>[0-9]{1,5}))?")
_URL = re.compile(r"http://(?P<authority>[^/?#]*)(?P<rest>[/?][^#]*)?", re.IGNORECASE)


class Refused(Exception):
    """A call does not get what it asks for: an HTTP status, and a line for the tool that says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        plain = "".join(character if character.isprintable() else "?" for character in reason)
        self.reason = plain[:LONGEST_REASON].encode("ascii", "replace").decode()


class Destination(NamedTuple):
    """A host in its plain spelling, and a port."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """As a `Host` header has it, in a request of HTTP without TLS."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == HTTP_PORT else f"{host}:{self.port}"


def of_connect(target: bytes) -> Destination:
    """The destination of `CONNECT host:port`. Raises `Refused`."""
    return _destination(target.decode("ascii"), default_port=None)


def of_url(target: bytes) -> tuple[Destination, bytes]:
    """The destination of `GET http://host/path` and the like, and the target for the server there. Raises `Refused`."""
    text = target.decode("ascii")
    found = _URL.fullmatch(text)
    if found is None:
        if text.lower().startswith("https://"):
            raise Refused(400, "this proxy passes https on by CONNECT only")
        raise Refused(400, "this is a proxy: ask for http://host/path, or CONNECT host:port")
    rest = found["rest"] or "/"
    path = rest if rest.startswith("/") else f"/{rest}"
    return _destination(found["authority"], default_port=HTTP_PORT), path.encode()


def _destination(authority: str, default_port: int | None) -> Destination:
    found = _AUTHORITY.fullmatch(authority)
    port = default_port if found is None or found["port"] is None else int(found["port"])
    if found is None or port is None or not 0 < port < 65536:
        raise Refused(400, "the destination is not host:port")
    try:
        return Destination(plain_host(found["host"]), port)
    except ValueError as error:
        raise Refused(403, f"the destination is refused: {error}") from error
