"""Profiles the servers while a section is measured: py-spy samples them from outside.

Each server and section gets a file of collapsed stacks, which https://www.speedscope.app and flamegraph.pl read.
"""

import asyncio
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE

from bench.deployments import Deployment

SAMPLES_PER_S = 100
SHOWN = 25
LINE = re.compile(r":\d+\)$")
"""Matches the end of `function (file.py:12)`."""


class Profiler:
    """Samples the processes of deployments, and prints their most frequent functions."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self._directory = directory

    @asynccontextmanager
    async def sampling(self, title: str, deployment: Deployment) -> AsyncGenerator[None]:
        """Samples every process of the product for the block."""
        self._directory.mkdir(parents=True, exist_ok=True)
        files = {
            name: self._directory / f"{title}-{name.replace(' + ', '-')}.collapsed" for name in deployment.processes
        }
        samplers = [await self._start(deployment.processes[name].pid, file) for name, file in files.items()]
        try:
            yield
        finally:
            for sampler in samplers:
                with suppress(ProcessLookupError):  # the sampled server has ended
                    sampler.send_signal(signal.SIGINT)
            errors = [(await sampler.communicate())[1] for sampler in samplers]
        for (name, file), error in zip(files.items(), errors, strict=True):
            if not file.exists():
                raise OSError(f"py-spy: {error.decode(errors='replace').strip()}")
            print(f"\n{title}, {name}: {file}\n{most_often(file.read_text())}", file=sys.stderr, flush=True)

    async def _start(self, pid: int, file: Path) -> asyncio.subprocess.Process:
        arguments = [
            "record",
            "--pid",
            str(pid),
            "--rate",
            str(SAMPLES_PER_S),
            "--format",
            "raw",
            "--output",
            str(file),
        ]
        return await asyncio.create_subprocess_exec(self._program, *arguments, stdout=DEVNULL, stderr=PIPE)


def profiler(directory: Path) -> Profiler:
    """Returns a profiler. Raises `OSError`, which says how to install py-spy, if it is missing."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise FileNotFoundError(f"there is no py-spy: {sys.executable} -m pip install py-spy")
    return Profiler(found, directory)


def most_often(collapsed: str) -> str:
    """Returns the functions by their own share of the samples. `collapsed`: lines of `outer;…;inner count`."""
    own = Counter[str]()
    for line in collapsed.splitlines():
        stack, _, times = line.rpartition(" ")
        own[LINE.sub(")", stack.rpartition(";")[2])] += int(times)
    whole = own.total()
    return "\n".join(f"{times / whole:6.1%}  {function}" for function, times in own.most_common(SHOWN))
