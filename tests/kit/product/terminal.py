"""Commands of Holdfast as a person or a script gives them: with their output and exit status, or on a terminal
that a test types on."""

import asyncio
import fcntl
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.kit.commands import HOLDFAST, ROOT, Command, fork
from tests.kit.wait_until import wait_until

_ON_THIS_TERMINAL = (
    "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    f"signal.signal(signal.SIGINT, signal.default_int_handler); {HOLDFAST}"
)
"""Ctrl-C is a signal to the processes whose terminal this is. Tests that run in the background may have been told to
ignore it, and what they start would ignore it too."""

_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

INTERRUPT = "\x03"


@dataclass(frozen=True)
class Said:
    """A command's output and exit status."""

    status: int
    output: str
    errors: str


def clean_environment(**settings: str) -> dict[str, str]:
    """This process's environment, without variables that would lead a command to another server."""
    foreign = ("HOLDFAST_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | settings


async def said(directory: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> Said:
    """Runs a command to its end."""
    files = directory / "output", directory / "errors"
    for file in files:
        file.write_text("")
    process = await asyncio.to_thread(fork, Command(arguments, environment, *files))
    await wait_until(lambda: process.exit_status() is not None, description=f"{arguments} to end")
    return Said(process.exit_status() or 0, *(file.read_text() for file in files))


class Terminal:
    """A command on a terminal of its own. What it has shown is in `text`, without colours."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self._process = process
        self._end = end
        self._shown = b""

    @property
    def text(self) -> str:
        """All that was shown so far, typed lines included."""
        with suppress(BlockingIOError, OSError):  # an ended process has closed its side
            while piece := os.read(self._end, 65536):
                self._shown += piece
        return _STYLE.sub("", self._shown.decode(errors="replace")).replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        """Types a text; a line ends with a line end."""
        os.write(self._end, keys.encode())

    async def shows(self, words: str, *, times: int = 1) -> None:
        """Returns when these words have been shown this often."""

        def has_shown() -> bool:
            text = self.text
            assert text.count(words) >= times or self._process.poll() is None, f"it ended, and had shown:\n{text}"
            return text.count(words) >= times

        try:
            await wait_until(has_shown, description=f"the terminal to show {words!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n\nshown:\n{self.text}") from error

    async def ended(self) -> int:
        """Its exit status, once it has ended."""

        def has_ended() -> bool:
            return bool(self.text) and self._process.poll() is not None

        await wait_until(has_ended, description="the command on the terminal to end")
        status = self._process.poll()
        assert status is not None
        return status


@contextmanager
def on_terminal(arguments: Sequence[str], environment: Mapping[str, str]) -> Generator[Terminal]:
    """The command on a terminal, for the block; it is killed where it has not ended."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, b"\x30\x00\xc8\x00\x00\x00\x00\x00")  # 48 lines of 200 characters
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_THIS_TERMINAL, *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=ROOT,
        env={**environment, "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(its)
    os.set_blocking(ours, False)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
