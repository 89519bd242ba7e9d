"""Runs commands of Holdfast as processes: in a new interpreter, or forked from a process that has imported everything.

The imports of a process take a second of work, and three if modules are not compiled; the rest of the process often
takes less. So tests fork it from a server of `multiprocessing` that has imported everything and run nothing. Each child
begins where `holdfast` begins.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from cli.command_table import COMMANDS
from cli.main import main

PRELOADED = [
    *(__name__, "tests.kit.late_parts", "tests.kit.model_clients"),
    *{place.module for place in COMMANDS.values()},
]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Command:
    """The arguments of `holdfast`, its whole environment, and the files that its output and its log are written to."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    output: Path
    log: Path


@dataclass(frozen=True)
class CommandProcess:
    """A process that runs a command."""

    pid: int
    exit_status: Callable[[], int | None]
    """None while it runs; negative when a signal has ended it."""


Launch = Callable[[Command], CommandProcess]


HOLDFAST = "from cli.main import main; main()"


def execute(command: Command, program: str = HOLDFAST) -> CommandProcess:
    """A new interpreter, as an operator starts it. `program` is what it executes, `holdfast` by default."""
    with command.output.open("ab") as output, command.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *command.arguments],
            stdout=output,
            stderr=log,
            cwd=ROOT,
            env=dict(command.environment),
        )
    return CommandProcess(process.pid, process.poll)


def fork(command: Command) -> CommandProcess:
    """A child of the server. Blocks until there is one, the first time until the server has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run, args=(command,), daemon=True)
    process.start()
    assert process.pid is not None
    return CommandProcess(process.pid, lambda: _exit_status(process))


def _exit_status(process: ForkServerProcess) -> int | None:
    return process.exitcode


def _run(command: Command) -> None:
    for stream, file in ((sys.stdout, command.output), (sys.stderr, command.log)):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(command.environment)
    os.chdir(ROOT)
    main(command.arguments)
