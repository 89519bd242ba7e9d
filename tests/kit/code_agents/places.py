"""Lets an agent report that it has reached a place, and wait there for its test. They share a folder."""

import os
import signal
from pathlib import Path

from tests.kit.wait_until import wait_until

STAGE = Path(os.environ.get("HOLDFAST_AGENTS_STAGE", "/nonexistent"))


def reach(moment: str) -> None:
    """Records that an agent has reached this place."""
    with (STAGE / "reached").open("a", encoding="utf-8") as file:
        file.write(f"{moment}\n")


async def at(moment: str) -> None:
    """Records that an agent has reached this place, and waits until the test releases it."""
    reach(moment)
    stop = STAGE / f"stop {moment}"
    await wait_until(lambda: not stop.exists(), description=moment)


def block_at(moment: str) -> None:
    """The same for a function that blocks its thread."""
    reach(moment)
    stop = STAGE / f"stop {moment}"
    while stop.exists():
        signal.sigtimedwait([], 0.01)
