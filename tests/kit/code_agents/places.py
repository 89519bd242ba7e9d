"""Where an agent says where it is, and stands still where its test wants it. Agents and tests share a folder."""

import os
import signal
from pathlib import Path

from tests.kit.wait_until import wait_until

STAGE = Path(os.environ.get("HOLDFAST_AGENTS_STAGE", "/nonexistent"))


def reach(moment: str) -> None:
    """Notes that an agent is here."""
    with (STAGE / "reached").open("a", encoding="utf-8") as file:
        file.write(f"{moment}\n")


async def at(moment: str) -> None:
    """An agent is here; it goes on when the test lets it."""
    reach(moment)
    stop = STAGE / f"stop {moment}"
    await wait_until(lambda: not stop.exists(), description=moment)


def block_at(moment: str) -> None:
    """The same for a function that blocks its thread."""
    reach(moment)
    stop = STAGE / f"stop {moment}"
    while stop.exists():
        signal.sigtimedwait([], 0.01)
