"""Compaction on Letta's wire: what a client says about it, and the answer."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.letta.model_settings import ModelSettingsFields, changed_options
from shared.domain.agents import ModelOptions
from shared.domain.compaction import CompactionMode, CompactionOptions
from shared.domain.errors import InvalidRequest
from shared.domain.ids import UUID4_PATTERN, AgentId

WireMode = Literal["all", "sliding_window", "self_compact_all", "self_compact_sliding_window"]

_MODES: Mapping[WireMode, CompactionMode] = {
    "all": "all",
    "sliding_window": "sliding_window",
    # The wire's agents can also be asked inside their own conversation, which costs its whole context once more, at a
    # time at which it is full.
    "self_compact_all": "all",
    "self_compact_sliding_window": "sliding_window",
}

SETTINGS = "compaction_settings"
"""Key of `Agent.extra`: how the agent's histories are compacted, as its client said it."""


class CompactionSettings(BaseModel):
    """How to compact."""

    model_config = ConfigDict(extra="ignore")

    mode: WireMode = "sliding_window"
    model: str | None = None
    """Any handle: clients name models of Letta's own cloud in every agent. One that cannot be asked falls away."""
    model_settings: ModelSettingsFields | None = None
    prompt: str | None = None
    prompt_acknowledgement: bool = False
    clip_chars: Annotated[int | None, Field(ge=1)] = 50_000
    sliding_window_percentage: Annotated[float, Field(ge=0, le=1)] = 0.3

    def options(self) -> CompactionOptions:
        """The same in our terms."""
        settings = self.model_settings
        return CompactionOptions(
            mode=_MODES[self.mode],
            keep_share=self.sliding_window_percentage,
            model=self.model,
            model_options=None if settings is None else changed_options(ModelOptions(), settings.options()),
            prompt=self.prompt,
            acknowledged=self.prompt_acknowledgement,
            clip_chars=self.clip_chars,
        )


def when_full(of_agent: Mapping[str, Any]) -> CompactionOptions:
    """How the agent's context is compacted when it is full; `of_agent` is `Agent.extra`.

    Another release may have stored settings that this one does not know. A message is no occasion to refuse them: the
    defaults hold.
    """
    try:
        return CompactionSettings.model_validate(of_agent.get(SETTINGS) or {}).options()
    except ValidationError:
        return CompactionOptions()


def changed_settings(before: Mapping[str, Any] | None, change: CompactionSettings) -> dict[str, Any]:
    """What the agent's client has said by now: fields that it leaves out stay."""
    return {**(before or {}), **change.model_dump(mode="json", exclude_unset=True)}


def wire_settings(of_agent: Mapping[str, Any], model: str) -> dict[str, Any]:
    """How the histories of an agent with this model are compacted: what its client has said, and for the rest what
    holds. `of_agent` is `Agent.extra`. A prompt that is null is the server's own."""
    said: Mapping[str, Any] = of_agent.get(SETTINGS) or {}
    try:
        settings = CompactionSettings.model_validate(said)
    except ValidationError:
        said, settings = {}, CompactionSettings()
    return {
        "model": settings.model or model,
        "model_settings": said.get("model_settings"),
        **settings.model_dump(mode="json", exclude={"model", "model_settings"}),
    }


class CompactRequest(BaseModel):
    """The body of a request to compact; all of it may be left out."""

    model_config = ConfigDict(extra="ignore")

    agent_id: Annotated[AgentId | None, Field(pattern=f"^agent-{UUID4_PATTERN}$")] = None
    compaction_settings: CompactionSettings | None = None

    def settings(self, of_agent: Mapping[str, Any] | None) -> CompactionSettings:
        """What is said here, and for the rest what the agent's own `compaction_settings` say.

        Raises `InvalidRequest` when those make no sense.
        """
        asked = self.compaction_settings
        given = {} if asked is None else {name: getattr(asked, name) for name in asked.model_fields_set}
        try:
            return CompactionSettings.model_validate({**(of_agent or {}), **given})
        except ValidationError as error:
            raise InvalidRequest(
                f"the agent's compaction_settings are not valid: {error}", field="compaction_settings"
            ) from error


def wire_compaction(summary: str, before: int, after: int) -> dict[str, Any]:
    """What a compaction has come to."""
    return {"summary": summary, "num_messages_before": before, "num_messages_after": after}
