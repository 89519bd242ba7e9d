"""A `holdfast worker` that counts the starts of its isolated tools: it writes a line to a file for each.

An isolated tool cannot report its start, so the worker does, between the fork of the call and the payload without which
the call cannot begin. So no start is missed, whichever of the two dies next, and a call that was sent twice is counted
twice. A tool without isolation records its own start (`tools.py`).
"""

import json
import os
import time
from functools import partial
from typing import Any

from bench.chaos.tools import STARTS, birth_of, write_start
from cli.main import main
from tests.kit.commands import execute
from worker.tools import isolated_sandbox, zygote
from worker.tools.isolated_sandbox import WalledProcess
from worker.tools.zygote import ForkedCall

launch_counted = partial(execute, program="from bench.chaos.counted_worker import work; work()")


class KnownCall(ForkedCall):
    """A call that reads its process id from this machine's `/proc`."""

    @property
    def pid(self) -> int:
        """The process id; 0 if the process was reaped."""
        with open(f"/proc/self/fdinfo/{self._pidfd}") as file:  # noqa: PTH123 - pathlib is slow and would block the loop
            said = dict(line.split(":", 1) for line in file)
        return max(0, int(said["Pid"]))


class CountedProcess(WalledProcess):
    """A call that records its start before it sends its payload."""

    def __init__(self, pool: Any, needs: Any, sent: bytes, *arguments: Any, **options: Any) -> None:
        super().__init__(pool, needs, sent, *arguments, **options)
        # A starting worker tests its isolation with calls of its own, which belong to no run.
        self._key = json.loads(sent)["arguments"].get("key")

    async def _forked(self, ends: list[int]) -> ForkedCall:
        call = await super()._forked(ends)
        if self._key is None:
            return call
        assert isinstance(call, KnownCall)
        pid = call.pid
        write_start(os.environ[STARTS], str(self._key), pid, birth_of(pid) or 0, time.time())
        return call


def count_starts() -> None:
    """Makes this process record each start of an isolated tool."""
    setattr(zygote, ForkedCall.__name__, KnownCall)
    setattr(isolated_sandbox, WalledProcess.__name__, CountedProcess)


def work() -> None:
    """Runs the command with counted tools."""
    count_starts()
    main()
