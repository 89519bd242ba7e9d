"""The rows of a deployment that has run for a long time: rows of ended runs in every table that grows."""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from shared.domain.lifecycle import RunStatus
from shared.domain.runs import RunOptions, Step, Usage
from shared.sql.run_tables import (
    approvals,
    callbacks,
    event_blocks,
    injected_messages,
    run_inputs,
    run_steps,
    runs,
    steps,
    submission_keys,
    tool_intents,
)
from shared.sql.tables import messages, to_json
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import AGENT, IDS, THREAD, Stores, said

EARLIER = 4000
OURS = 8
"""One in this many ended runs belongs to the thread under test, whose agent and project have no other runs."""

AN_OLD_STEP = Step(id=IDS.step(), run_id=IDS.run(), agent_id=AGENT.id, number=1, model="builtin/echo", created_at=NOW)

Rows = dict[sa.Table, Iterator[dict[str, Any]]]


def owner_of(number: int) -> dict[str, str]:
    """The project and agent of a run in an old deployment."""
    if number % OURS == 1:
        return {"project_id": PROJECT, "agent_id": AGENT.id}
    return {"project_id": f"project-{number % 97}", "agent_id": f"agent-{number % 97}"}


async def fill_with_ended_runs(stores: Stores, count: int = EARLIER) -> None:
    """Puts an old deployment's rows into every table that grows."""
    ended = [(number, str(THREAD) if number % OURS == 1 else f"conv-{2 + number % 97}") for number in range(count)]
    async with stores.database.write() as connection:
        for table, values in {**_runs_and_logs(ended), **_what_hangs_on_runs(ended)}.items():
            await connection.execute(sa.insert(table), list(values))
        if not stores.database.is_sqlite:
            # Postgres does this by itself; SQLite does not.
            await connection.execute(sa.text("ANALYZE"))


def _runs_and_logs(ended: Sequence[tuple[int, str]]) -> Rows:
    return {
        runs: (
            {
                "id": f"run-{number}", **owner_of(number), "thread_id": thread,
                "status": RunStatus.COMPLETED, "stop_reason": "end_turn", "background": False,
                "options": to_json(RunOptions()), "turn": number + 1, "dispatch": 0, "fence": 1,
                "attempts_without_progress": 0, "usage": to_json(Usage()), "step_count": 1, "last_seq": 9,
                "checkpoint_seq": 9, "created_at": NOW, "updated_at": NOW, "completed_at": NOW,
            }
            for number, thread in ended
        ),
        run_inputs: ({"run_id": f"run-{number}", "input": "[]"} for number, _ in ended),
        messages: (
            {
                "id": f"message-{number}", "agent_id": owner_of(number)["agent_id"], "thread_id": thread,
                "run_id": f"run-{number}",
                "turn": number + 1, "position": 1, "in_context": False, "left_because": "compacted",
                "body": to_json(said("hi").body), "created_at": NOW,
            }
            for number, thread in ended
        ),
        event_blocks: (
            {"run_id": f"run-{number}", "first_seq": 2, "last_seq": 9, "data": b""} for number, _ in ended
        ),
    }  # fmt: skip


def _what_hangs_on_runs(ended: Sequence[tuple[int, str]]) -> Rows:
    return {
        injected_messages: (
            {
                "run_id": f"run-{number}", "thread_id": thread, "message_id": f"injected-{number}", "message": "{}",
                "if_ended": "next", "delivered_at": NOW,
            }
            for number, thread in ended
        ),
        approvals: (
            {
                "id": f"approval-{number}", **owner_of(number), "thread_id": thread,
                "run_id": f"run-{number}", "number": 1, "message_id": f"message-{number}",
                "tool_call_id": f"call-{number}", "tool_name": "look", "arguments": "{}", "arguments_hash": "",
                "client_side": False, "asked_at": NOW, "expires_at": NOW, "on_expiry": "deny", "decided_at": NOW,
            }
            for number, thread in ended
        ),
        callbacks: (
            {
                "run_id": f"run-{number}", "project_id": owner_of(number)["project_id"], "url": "http://127.0.0.1/",
                "attempts": 1,
            }
            for number, _ in ended
        ),
        submission_keys: (
            {"thread_id": thread, "key": f"otids:{number}", "run_id": f"run-{number}"} for number, thread in ended
        ),
        steps: (
            {
                "id": f"step-{number}", "run_id": f"run-{number}", **owner_of(number),
                "number": 1, "document": to_json(AN_OLD_STEP), "created_at": NOW,
            }
            for number, _ in ended
        ),
        run_steps: (
            {
                "journal": f"run-{number}", "slot": "step:plan#0", "run_id": f"run-{number}", "number": 1, "ordinal": 0,
                "kind": "step", "name": "plan", "branch": "", "hash": "h", "state": "done", "attempt": 1, "fence": 1,
                "started_at": NOW, "idempotency_key": f"hf-{number}",
            }
            for number, _ in ended
        ),
        tool_intents: (
            {
                "run_id": f"run-{number}", "tool_call_id": "call_0", "tool_name": "look", "state": "started",
                "started_at": NOW,
            }
            for number, _ in ended
        ),
    }  # fmt: skip
