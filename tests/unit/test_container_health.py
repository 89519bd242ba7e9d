"""The health check of a container asks the process that the container was started with, and can fail for each."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from holdfast.health import NotWellError, address, ask
from tests.kit.free_ports import free_port
from tests.kit.project.source_tree import ROOT

PROGRAM = ["/opt/holdfast/bin/python", "/opt/holdfast/bin/holdfast"]
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - an address to read, none is bound
WORKER = [*PROGRAM, "worker"]


@contextmanager
def serving(status: int) -> Generator[int]:
    """The port of a server that answers one request with this status, and with its path."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(180)
        thread = threading.Thread(target=_answer, args=(server, status))
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def _answer(server: socket.socket, status: int) -> None:
    connection, _ = server.accept()
    with connection:
        path = connection.recv(65536).split()[1]
        # A 204 has no body, and what follows its head is not read.
        connection.sendall(f"HTTP/1.1 {status} As Asked\r\ncontent-length: {len(path)}\r\n\r\n".encode() + path)


@pytest.mark.parametrize(
    ("command", "variables", "asked"),
    [
        ([*PROGRAM, "api"], {}, ("127.0.0.1", 8283)),
        ([*PROGRAM, "api", "--host", EVERY_ADDRESS, "--port", "8283"], {}, ("127.0.0.1", 8283)),
        ([*PROGRAM, "api", "--port=9000", "--host=::"], {}, ("127.0.0.1", 9000)),
        ([*PROGRAM, "api", "--port", "1", "--port", "9001", "--host", "10.1.2.3"], {}, ("10.1.2.3", 9001)),
        (["/usr/bin/tini", "--", "holdfast", "dev", "--port", "9002"], {}, ("127.0.0.1", 9002)),
        (WORKER, {"HOLDFAST_WORKER_PORT": "9100"}, ("127.0.0.1", 9100)),
        (WORKER, {"HOLDFAST_WORKER_PORT": "9100", "HOLDFAST_WORKER_HOST": EVERY_ADDRESS}, ("127.0.0.1", 9100)),
        (WORKER, {"HOLDFAST_WORKER_PORT": "9100", "HOLDFAST_WORKER_HOST": "10.1.2.3"}, ("10.1.2.3", 9100)),
        ([*PROGRAM, "migrate", ""], {"HOLDFAST_WORKER_PORT": "9100"}, None),
        ([*PROGRAM, "status"], {}, None),
    ],
)
def test_whom_a_health_check_asks(command: list[str], variables: dict[str, str], asked: tuple[str, int] | None) -> None:
    assert address(command, variables) == asked


@pytest.mark.parametrize("variables", [{}, {"HOLDFAST_WORKER_PORT": ""}, {"HOLDFAST_WORKER_PORT": "0"}])
def test_a_worker_was_healthy_whatever_it_did(variables: dict[str, str]) -> None:
    with pytest.raises(NotWellError, match="set HOLDFAST_WORKER_PORT"):
        ask(WORKER, variables, "/healthz")


def test_a_worker_is_asked_at_its_port() -> None:
    with serving(200) as port:
        ask(WORKER, {"HOLDFAST_WORKER_PORT": str(port)}, "/healthz")
    with (
        serving(503) as port,
        pytest.raises(NotWellError, match=r"^/readyz at 127\.0\.0\.1:\d+ answers 503: /readyz$"),
    ):
        ask(WORKER, {"HOLDFAST_WORKER_PORT": str(port)}, "/readyz")


@pytest.mark.parametrize("status", [200, 204, 301, 404, 500, 503])
def test_only_a_200_is_well(status: int) -> None:
    with serving(status) as port:
        command = [*PROGRAM, "api", "--port", str(port)]
        if status == 200:
            ask(command, {}, "/healthz")
        else:
            with pytest.raises(NotWellError, match=f"answers {status}"):
                ask(command, {}, "/healthz")


def test_a_port_that_nobody_opened_is_not_well() -> None:
    with pytest.raises(NotWellError, match="has no answer"):
        ask([*PROGRAM, "api", "--port", str(free_port())], {}, "/healthz")


def test_a_check_is_short_and_imports_nothing_of_the_product() -> None:
    text = (ROOT / "holdfast/health.py").read_text(encoding="utf-8")
    imported = {
        line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported <= {"collections", "http", "os", "pathlib", "sys"}


def test_the_image_runs_it() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert (
        'HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-I", "-m", "holdfast.health"]'
        in text
    )
    assert " HOLDFAST_WORKER_PORT=9100" in text
