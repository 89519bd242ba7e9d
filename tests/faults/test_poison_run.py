"""A run that ends its workers: it is found and taken out of circulation, and no other run is failed for it."""

from collections import Counter
from itertools import count

from tests.kit.model_server import ModelServer, ReceivedRequest, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.product.processes import HoldfastProcess, Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.wait_until import wait_until

NEIGHBOURS = 4


def said_in(request: ReceivedRequest) -> str:
    return next(message["content"] for message in request.body["messages"] if message["role"] == "user")


async def submit(product: Product, text: str) -> str:
    agent = await product.agent()
    answer = await product.http.post(f"/v1/agents/{agent.id}/messages/async", json={"input": text})
    return answer.json()["id"]


async def test_a_run_that_kills_its_workers_fails_alone(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """Three workers died of one run, and whatever else they had in hand was failed with it as `worker_lost`. A worker
    logged that it executes a run alone each time that it gave the run back, because another one was alone."""

    workers = list[HoldfastProcess]()
    asked = Counter[str]()

    def answer(request: ReceivedRequest) -> Turn:
        text = said_in(request)
        asked[text] += 1
        # At the first two deaths, the neighbours are in the middle of their first step; a third one would come sooner
        # than their answer, too.
        is_silent = text == "poison" or asked[text] <= 2
        return Turn(text="Done.", silent_before_headers=3600 if is_silent else 1.5)

    models.answer_with(answer)
    neighbours = [f"neighbour {number}" for number in range(NEIGHBOURS)]
    runs = {text: await submit(product, text) for text in [*neighbours, "poison"]}

    async def poison_is_over() -> bool:
        return (await product.run(runs["poison"]))["status"] in ("completed", "failed")

    for death in count(1):
        worker = await processes.worker()
        workers.append(worker)

        async def is_time(death: int = death) -> bool:
            in_company = death > 2 or all(asked[text] == death for text in runs)
            return (asked["poison"] == death and in_company) or await poison_is_over()

        await wait_until(is_time, description=f"the poison to act, {death}")
        if await poison_is_over():
            break
        await worker.kill()
        await end_leases(product.context.redis)

    assert asked["poison"] == 3, "two deaths in company, and one alone"
    poison = await product.run(runs["poison"])
    assert (poison["status"], poison["metadata"]["error"]["error_type"]) == ("failed", "worker_lost")
    for text in neighbours:
        assert (await product.ended(runs[text]))["status"] == "completed"
        whole = await read_whole(product.http, runs[text])
        whole.assert_complete()
    for log in (worker.log.read_text().splitlines() for worker in workers):
        said = Counter(run for entry in log if "run_quarantined" in entry for run in runs.values() if run in entry)
        assert max(said.values(), default=1) == 1, said


async def test_a_suspect_waits_for_the_steps_of_its_neighbours_and_then_runs_alone(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """A run that two workers were lost with comes to a worker that has others in hand."""
    models.answer_with(lambda _: Turn(text="Done.", silent_before_headers=3600))
    suspect = await submit(product, "suspect")
    for death in (1, 2):
        worker = await processes.worker()
        await wait_until(lambda so_far=death: len(models.requests) == so_far, description="the model to be asked")
        await worker.kill()
        await end_leases(product.context.redis)

    models.answer_with(lambda request: Turn(text="Done.", pace=1 if said_in(request) == "neighbour" else 0))
    neighbour = await submit(product, "neighbour")
    last = await processes.worker(max_runs=2)
    assert (await product.ended(suspect))["status"] == "completed"
    assert (await product.ended(neighbour))["status"] == "completed"
    assert "run_quarantined" in last.log.read_text()
