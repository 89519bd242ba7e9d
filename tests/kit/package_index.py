"""A package index on loopback with wheels that a test writes. It misbehaves if the test asks for that."""

import asyncio
import base64
import hashlib
import html
import io
import re
import ssl
import tarfile
import zipfile
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

from tests.kit.stream_server import stream_server


def wheel(
    name: str, version: str, files: Mapping[str, str], *, requires: Sequence[str] = (), tag: str = "py3-none-any"
) -> tuple[str, bytes]:
    """The file name and the bytes of a wheel with these files."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    every = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},{_digest(text)},{len(text.encode())}\n" for path, text in every.items())
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in {**every, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return f"{name}-{version}-{tag}.whl", packed.getvalue()


def _digest(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def source_archive(name: str, version: str, setup: str) -> tuple[str, bytes]:
    """The file name and the bytes of a source distribution whose `setup.py` is this."""
    packed = io.BytesIO()
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in {"setup.py": setup, "PKG-INFO": described}.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{name}-{version}.tar.gz", packed.getvalue()


class PackageIndex:
    """Serves `/simple/<package>/` and the files of each. `asked` counts the requested paths."""

    def __init__(self) -> None:
        self._files: dict[str, dict[str, bytes]] = {}
        self.asked: Counter[str] = Counter()
        self.status = 200
        """The status of all answers, if it is an error."""
        self.answers = asyncio.Event()
        """While it is not set, no request gets an answer."""
        self.answers.set()
        self._port = 0
        self._scheme = "http"

    @property
    def url(self) -> str:
        """The URL, with a password as operators use it."""
        return f"{self._scheme}://somebody:hidden@127.0.0.1:{self._port}/simple"

    def put(self, file: tuple[str, bytes]) -> Self:
        """Publishes a file."""
        name, content = file
        package = re.split(r"-\d", name)[0].lower().replace("_", "-")
        self._files.setdefault(package, {})[name] = content
        return self

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Self]:
        """Serves the index during the block."""
        self._scheme = "http" if tls is None else "https"
        async with stream_server(self._answer, tls=tls) as port:
            self._port = port
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            if method == "GET":
                self.asked[path] += 1
            await self.answers.wait()
            status, kind, content = self._found(path)
            answered = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
            writer.write(f"{answered}Connection: close\r\n\r\n".encode() + (content if method == "GET" else b""))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _found(self, path: str) -> tuple[int, str, bytes]:
        _, _, package, *rest = [*path.split("/"), "", ""]
        files = self._files.get(package)
        if self.status != 200 or files is None:
            return 404 if self.status == 200 else self.status, "text/plain", b"no"
        if rest[0]:
            return 200, "application/octet-stream", files[rest[0]]
        links = "".join(f'<a href="{html.escape(name)}">{html.escape(name)}</a>' for name in files)
        return 200, "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
