"""What a tool may be given: less than the worker gives to each call, and a network where the operator allows one."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.domain.errors import InvalidRequest
from shared.domain.tools import LEAST_TOOL_MEMORY_MB


class LimitsIn(BaseModel):
    """What one call of the tool may use, where that is less than the worker gives."""

    # A misspelled limit must not be none.
    model_config = ConfigDict(extra="forbid")

    timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    cpu_s: int | None = Field(default=None, ge=1, le=86_400)
    memory_mb: int | None = Field(default=None, ge=LEAST_TOOL_MEMORY_MB, le=1 << 20)


def refuse_network(wanted: Literal["none", "host"] | None, allowed_hosts: str) -> None:
    """Raises `InvalidRequest` for a tool that asks for a network where the operator allows no host."""
    if wanted == "host" and not allowed_hosts:
        raise InvalidRequest(
            "network: this server gives tools no network; its operator can allow hosts with HOLDFAST_TOOL_NETWORK",
            field="network",
        )
