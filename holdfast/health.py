"""Checks the health of this container's process: `python -m holdfast.health [/healthz | /readyz]`.

A health check runs every few seconds in every container, so this file imports nothing of the product. It exits with 0
if the answer is a 200, and otherwise with 1 and a sentence. A process that serves nothing, such as `holdfast migrate`,
is healthy while it runs.
"""

import http.client
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ANSWER_S = 4.0
"""Less than the `timeout` of a health check, so that the reason is printed before the check is killed."""

API_PORT = "8283"
EVERY_ADDRESS = {"", "0.0.0.0", "::"}  # noqa: S104 - addresses to compare with, none is bound


class NotWellError(Exception):
    """The process does not answer as a healthy one. The text is for the person who reads the container's health."""


def address(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Returns the host and port of a process with this command line; None for a process that serves nothing.

    Raises `NotWellError` for a worker without a port, whose health cannot be checked.
    """
    served = next((word for word in command if word in {"api", "dev", "worker"}), None)
    if served is None:
        return None
    if served == "worker":
        host, port = environment.get("HOLDFAST_WORKER_HOST", ""), environment.get("HOLDFAST_WORKER_PORT", "")
        if port in {"", "0"}:
            raise NotWellError("the worker has no port to ask: set HOLDFAST_WORKER_PORT")
    else:
        host, port = _option(command, "--host", ""), _option(command, "--port", API_PORT)
    return ("127.0.0.1" if host in EVERY_ADDRESS else host), int(port)


def ask(command: Sequence[str], environment: Mapping[str, str], path: str) -> None:
    """Raises `NotWellError` unless the process with this command line answers the path with 200."""
    asked = address(command, environment)
    if asked is None:
        return
    connection = http.client.HTTPConnection(*asked, timeout=ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise NotWellError(f"{path} at {asked[0]}:{asked[1]} has no answer: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise NotWellError(f"{path} at {asked[0]}:{asked[1]} answers {answer.status}: {text}")


def _option(command: Sequence[str], name: str, default: str) -> str:
    """Returns the value of an option, as `--port 9000` or `--port=9000`. Of several, the last one counts."""
    value = default
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == name:
            value = following
        elif word.startswith(f"{name}="):
            value = word.removeprefix(f"{name}=")
    return value


def main() -> None:
    """Asks the process with which the container was started, its first one."""
    path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
    command = Path("/proc/1/cmdline").read_bytes().decode(errors="replace").split("\0")
    try:
        ask(command, os.environ, path)
    except NotWellError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
