"""What spans say of the run that they belong to: OpenTelemetry's names for generative AI where it has one, and ours."""

from shared.domain.runs import Run
from shared.telemetry.tracer import Attributes


def of_run(run: Run) -> Attributes:
    """By these the spans of a run, an agent or a conversation are found."""
    return {
        "gen_ai.agent.id": run.agent_id,
        "gen_ai.conversation.id": run.thread_id,
        "holdfast.project": run.project_id,
        "holdfast.run.id": run.id,
        "holdfast.run.type": run.options.run_type,
        "holdfast.run.continues": run.continues,
    }
