"""Runs `holdfast worker`. It imports nothing of the API."""

from cli.operator.processes import production_process, stop_signal
from cli.operator.start import announce
from shared.process.settings import Settings
from worker.main import working

WAIT_S = 15.0
"""Seconds that a run waits for a database connection. No caller waits for a worker's answer, so runs that a worker
claims at the same time may queue."""


async def run_worker(settings: Settings) -> None:
    stop = stop_signal()
    async with production_process(settings, wait_s=WAIT_S) as process, working(process):
        said = f"holdfast worker: up to {settings.max_runs} runs at once"
        announce(settings, "worker_takes_runs", said, max_runs=settings.max_runs)
        await stop.wait()
