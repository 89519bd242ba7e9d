"""Agents of operators' own code: the agents that workers have, and the journals of their runs."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Response

from api.dependencies import MessageStoreDep, ProjectDep, RunIdPath, RunStoreDep, served
from api.direct_route import LateRoute
from api.every_answer import warn_if_pruned
from api.letta.messages import wire_time
from api.letta.runs import wire_code_agent
from api.offered_models import CodeAgentNames
from shared.concurrency import beside
from shared.domain.body_input import calls_of, hello_of
from shared.domain.errors import Conflict
from shared.domain.journal import JournalEntry
from shared.sql.runs.journal import JournalStore

CodeAgentNamesDep = Annotated[CodeAgentNames, served(CodeAgentNames)]
JournalStoreDep = Annotated[JournalStore, served(JournalStore)]

router = APIRouter(prefix="/v1", tags=["code agents"], route_class=LateRoute)

CHARACTERS_OF_AN_ENTRY = 500
"""Rendering this many characters as JSON takes as long as rendering an entry without its result."""


@router.get("/code-agents")
async def list_code_agents(names: CodeAgentNamesDep, _project_id: ProjectDep) -> list[dict[str, Any]]:
    """The agents of operators' own code that workers have or have had, with the number of live workers for each
    version, newest version first."""
    workers = await names.workers()
    return [
        {
            "name": one.name,
            "description": one.description,
            "framework": one.framework,
            "workers": sum(number for (name, _), number in workers.items() if name == one.name),
            "versions": [
                {
                    "version": version.version or None,
                    "workers": workers[one.name, version.version],
                    "last_seen_at": wire_time(version.seen_at),
                }
                for version in versions
            ],
        }
        for one, versions in await names.with_versions()
    ]


@router.get("/runs/{run_id}/journal")
async def list_journal(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    journals: JournalStoreDep,
    project_id: ProjectDep,
    response: Response,
    results: bool = False,
) -> list[dict[str, Any]]:
    """The steps, calls and waits of the code in the run's turn, in order. `results` adds their values. The list is
    empty for runs of other agents. A pruned run has no journal any more, and a `Warning` header says so."""
    run = await run_store.get(project_id, run_id)
    warn_if_pruned(response, run)
    entries = calls_of(await journals.of_run(run))
    size = sum(CHARACTERS_OF_AN_ENTRY + (len(entry.result or b"") if results else 0) for entry in entries)
    return await beside(lambda: [_wire_entry(entry, results=results) for entry in entries], size)


@router.get("/runs/{run_id}/replay")
async def retrieve_replay(
    run_id: RunIdPath,
    run_store: RunStoreDep,
    journals: JournalStoreDep,
    messages: MessageStoreDep,
    project_id: ProjectDep,
) -> dict[str, Any]:
    """The data with which an execution of the run's code begins, and the journal with its results: the only source of
    `holdfast agents replay`. The state is that of the thread's last completed run."""
    run = await run_store.get(project_id, run_id)
    if run.options.code_agent is None:
        raise Conflict(f"run {run_id} is not of an agent of own code: it has no journal")
    entries, state = await journals.of_run(run), await journals.thread_state(run)
    history = (await messages.context_of_run(run)).messages
    hello = hello_of(run, entries, history, state, max(1, int(run.fence)))

    def replay() -> dict[str, Any]:
        recorded = [
            {
                **_wire_entry(entry, results=True),
                # The recorded value, also if it is an exception.
                "result": None if entry.result is None else msgspec.json.decode(entry.result),
                "hash": entry.hash,
                "settings_hash": entry.settings_hash,
            }
            for entry in calls_of(entries)
        ]
        return {"run_id": run.id, "code_agent": wire_code_agent(run), "hello": hello, "entries": recorded}

    size = sum(CHARACTERS_OF_AN_ENTRY + len(entry.result or b"") for entry in entries)
    return await beside(replay, size + sum(len(one["text"]) for one in hello["history"]))


def _wire_entry(entry: JournalEntry, *, results: bool) -> dict[str, Any]:
    value: Any = None if entry.result is None else msgspec.json.decode(entry.result)
    failed = entry.state == "failed"
    return {
        "slot": entry.slot,
        "number": entry.number,
        "branch": entry.branch,
        "kind": entry.kind,
        "name": entry.name,
        "state": entry.state,
        "attempt": entry.attempt,
        "started_at": wire_time(entry.started_at),
        "ended_at": wire_time(entry.ended_at),
        "idempotency_key": entry.idempotency_key,
        "error": {"type": value["type"], "text": value["text"]} if failed else None,
        **({"result": None if failed else value} if results else {}),
    }
