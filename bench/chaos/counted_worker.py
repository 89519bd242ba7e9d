"""A worker that counts the starts of its walled tools: `holdfast worker`, with one line in a file for each.

A walled tool can tell nobody that it was started, so its worker is what counts: between the fork of the call and the
payload without which it cannot begin. So no start is missed, whichever of the two dies next, and a call that was sent
twice is counted twice. A tool without walls writes down its own start (`tools.py`).
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
    """A call whose process id this machine's `/proc` knows."""

    @property
    def pid(self) -> int:
        """0 when it is dead and buried."""
        with open(f"/proc/self/fdinfo/{self._pidfd}") as file:  # noqa: PTH123 - pathlib is slow, and the loop waits
            said = dict(line.split(":", 1) for line in file)
        return max(0, int(said["Pid"]))


class CountedProcess(WalledProcess):
    """A call that is written down before its payload is sent."""

    def __init__(self, pool: Any, needs: Any, sent: bytes, *arguments: Any, **options: Any) -> None:
        super().__init__(pool, needs, sent, *arguments, **options)
        # A worker tries its walls out when it starts, with calls of its own, which are nobody's.
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
    """From now on this process writes down each start of a walled tool."""
    setattr(zygote, ForkedCall.__name__, KnownCall)
    setattr(isolated_sandbox, WalledProcess.__name__, CountedProcess)


def work() -> None:
    """The command, counted."""
    count_starts()
    main()
