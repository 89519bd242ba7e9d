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


def limits_that_are_less_here(wanted: LimitsIn | None, *, timeout_s: float, cpu_s: int, memory_mb: int) -> list[str]:
    """A sentence for each limit that a tool asks for and this server does not give: the server's is less."""
    if wanted is None:
        return []
    given = (
        ("timeout_s", wanted.timeout_s, timeout_s, "HOLDFAST_TOOL_TIMEOUT"),
        ("cpu_s", wanted.cpu_s, cpu_s, "HOLDFAST_TOOL_CPU_S"),
        ("memory_mb", wanted.memory_mb, memory_mb, "HOLDFAST_TOOL_MEMORY_MB"),
    )
    return [
        f"limits.{name} is {asked:g}, and this server gives a call {most:g} ({setting})"
        for name, asked, most, setting in given
        if asked is not None and asked > most
    ]


def refuse_network(wanted: Literal["none", "host"] | None, allowed_hosts: str) -> None:
    """Raises `InvalidRequest` for a tool that asks for a network where the operator allows no host."""
    if wanted == "host" and not allowed_hosts:
        raise InvalidRequest(
            "network: this server gives tools no network; its operator can allow hosts with HOLDFAST_TOOL_NETWORK",
            field="network",
        )
