"""What `holdfast worker` runs. Nothing of the API is imported."""

from cli.operator.processes import production_process, told_to_end
from cli.operator.start import announce
from shared.process.settings import Settings
from worker.main import working

WAIT_S = 15.0
"""Nobody waits for an answer of a worker's: when it takes up many runs at once, they may queue for connections."""


async def run_worker(settings: Settings) -> None:
    stop = told_to_end()
    async with production_process(settings, wait_s=WAIT_S) as process, working(process):
        said = f"holdfast worker: up to {settings.max_runs} runs at once"
        announce(settings, "worker_takes_runs", said, max_runs=settings.max_runs)
        await stop.wait()
