"""Measures a start: a process's processor time until it is ready, corrected for the load of the machine."""

import argparse
import marshal
import os
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import CodeType

import psutil

from tests.kit.commands import Command, execute

COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Lets Python store compiled modules, as it does by default."""

REFERENCE_S = 0.100
"""Seconds of `calibrating_s` on one core of the idle machine that the bounds are for."""

_TIMES = 140


def calibrating_s() -> float:
    """Returns the processor time, in seconds, of a fixed amount of an import's work: loading and executing code."""
    spec = find_spec(argparse.__name__)
    assert spec is not None and spec.origin is not None
    compiled = marshal.dumps(compile(Path(spec.origin).read_text(), spec.origin, "exec"))
    began = time.process_time()
    for _ in range(_TIMES):
        code = marshal.loads(compiled)
        assert isinstance(code, CodeType)
        exec(code, {"__name__": "calibration"})
    return time.process_time() - began


def pace(before_s: float, after_s: float) -> float:
    """Returns the factor that corrects processor time between two calibrations."""
    return 2 * REFERENCE_S / (before_s + after_s)


def used_s(pid: int) -> float:
    """Returns a process's processor time in seconds, including its children's."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)


def used_until_its_end_s(arguments: Sequence[str], environment: Mapping[str, str], directory: Path) -> float:
    """Returns the processor time, in seconds, of a command that ends by itself."""
    files = directory / "output", directory / "log"
    command = Command(arguments, {**os.environ, **COMPILED, **environment}, *files)
    execute(command).exit_status()  # a first execution, in which Python compiles
    began = os.times()
    process = execute(command)
    os.waitpid(process.pid, 0)
    ended = os.times()
    return ended.children_user + ended.children_system - began.children_user - began.children_system
