"""A program written with the generated Python client of docs/openapi.json: `.ci/clients` runs it. It sends nothing."""

from holdfast_client import AuthenticatedClient
from holdfast_client.api.agents import agents_create
from holdfast_client.api.runs import runs_list, runs_retrieve
from holdfast_client.models import AgentCreate, Refusal, Run

ENDED_AT = "2026-01-01T00:00:00Z"
RUN = {
    "id": "run-1",
    "status": "completed",
    "created_at": ENDED_AT,
    "completed_at": ENDED_AT,
    "agent_id": "agent-1",
    "conversation_id": None,
    "base_template_id": None,
    "background": True,
    "metadata": {
        "run_type": "send_message",
        "started_at": ENDED_AT,
        "queue_wait_ms": 1.5,
        "first_token_ms": None,
        "step_count": 1,
        "prompt_tokens": 1,
        "completion_tokens": 1,
    },
    "request_config": {},
    "stop_reason": "end_turn",
    "callback_url": None,
    "callback_sent_at": None,
    "callback_status_code": None,
    "callback_error": None,
    "ttft_ns": None,
    "total_duration_ns": 1,
    "code_agent": None,
}
REFUSAL = {"detail": "x", "code": "not_found", "message": "x", "field": None, "hint": "y"}

client = AuthenticatedClient(base_url="http://127.0.0.1:8283", token="a key", headers={"X-Holdfast-Strict": "true"})
assert client.get_httpx_client().headers["Authorization"] == "Bearer a key"
run = Run.from_dict(RUN)
assert run.completed_at is not None and run.completed_at.tzinfo is not None
assert run.to_dict()["metadata"]["queue_wait_ms"] == 1.5
assert Refusal.from_dict(REFUSAL).code == "not_found"
assert AgentCreate.from_dict({"name": "support"}).name == "support"
for operation in (agents_create, runs_list, runs_retrieve):
    assert callable(operation.sync) and callable(operation.asyncio)
print("the client for Python reads and writes")
