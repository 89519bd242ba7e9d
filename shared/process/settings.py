"""Every setting of the product: an environment variable `HOLDFAST_…`, its unit and its default.

Read once, in `main.py` and the command line; everything else receives what it needs. Model keys and base URLs come
from the providers' usual variables and are read by `worker/models`.
"""

from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.domain.model_providers import split_handle


class Settings(BaseSettings):
    """The settings of one process."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", env_file=None, extra="ignore")

    database_url: str = Field(default="", description="`postgresql://…` or `sqlite:///path`.")
    database_connections: int = Field(
        default=20, ge=2, description="Connections to Postgres that one process may hold."
    )
    redis_url: str = Field(default="", description="`redis://host:port/db`. Empty: embedded (`holdfast dev` only).")
    api_keys: SecretStr = Field(
        default=SecretStr(""),
        description="Comma list of `project=key`. Empty: one project, no key asked, loopback only.",
    )
    allowed_hosts: str = Field(
        default="", description="Comma list of names by which a server without keys may be reached, beside loopback's."
    )
    cors_origins: str = Field(
        default="", description="Comma list of the origins of web pages that may ask this server, or `*`."
    )
    max_body_bytes: int = Field(default=16_000_000, ge=1000, description="The longest body of a request.")
    request_timeout: float = Field(
        default=30.0, gt=0, description="Seconds for a request's head to arrive, and of silence inside its body."
    )

    max_runs: int = Field(default=100, ge=1, description="Runs that one worker executes at once.")
    lease_s: float = Field(default=6.0, gt=0.2, description="Seconds for which a claim holds without renewal.")
    database_patience: float = Field(
        default=60.0, ge=0, description="Seconds that a worker repeats a write of a run while the database is away."
    )
    sweep_s: float = Field(default=5.0, gt=0, description="Seconds between two looks for unowned runs.")
    max_attempts: int = Field(
        default=3,
        ge=1,
        description="Workers that may be lost with a run before it stores a step; the last one had it alone.",
    )
    stream_ttl_s: int = Field(default=3600, ge=1, description="Seconds that Redis keeps a log after its last event.")
    retain_days: int = Field(
        default=0,
        ge=0,
        le=36_500,
        description="Days that the log and the steps of a run are kept after its end; 0: for ever.",
    )
    drain_s: float = Field(
        default=5.0,
        ge=0,
        description="Seconds that SIGTERM lets steps finish before runs are handed over. `holdfast dev` takes 0.",
    )

    first_event_timeout: float = Field(default=120.0, gt=0, description="Seconds for a model to begin its answer.")
    idle_timeout: float = Field(default=120.0, gt=0, description="Seconds of silence inside a model's answer.")
    run_timeout: float = Field(default=3600.0, gt=0, description="Seconds of work that one run may take.")
    run_token_budget: int = Field(default=0, ge=0, description="Tokens that one run may use, in and out; 0: no limit.")
    model_retries: int = Field(default=3, ge=0, description="Retries of a failed model call before its first event.")
    default_model: str = Field(
        default="", description="The model of an agent that is made without one, or with `letta/auto`."
    )
    builtin_models: bool = Field(
        default=False, description="Offer the `builtin/…` models. `holdfast dev` does unless this says no."
    )

    tool_timeout: float = Field(default=180.0, gt=0, description="Seconds that one tool call may take.")
    tool_grace: float = Field(default=2.0, ge=0, description="Seconds for a cancelled tool to clean up before SIGKILL.")
    tool_memory_mb: int = Field(default=512, ge=64, description="Address space of one tool call, MiB.")

    cancel_wait_s: float = Field(default=5.0, ge=0, description="Seconds that a cancel waits for the run to stop.")
    keepalive_s: float = Field(default=20.0, gt=0, description="Seconds of silence before a stream gets a ping.")
    callback_allow_private: bool = Field(default=False, description="Allow callbacks to private addresses.")
    callback_secret: SecretStr = Field(default=SecretStr(""), description="Signs callbacks (Standard Webhooks).")

    crash_at: str = Field(default="", description="For tests of recovery: `shared/crash_points.py`.")
    log_level: str = Field(default="INFO", description="DEBUG, INFO, WARNING or ERROR.")
    log_json: bool = Field(default=False, description="Log as JSON lines.")
    data_dir: Path = Field(default=Path(".holdfast"), description="Where `holdfast dev` keeps its database.")

    @field_validator("default_model")
    @classmethod
    def _is_a_model(cls, handle: str) -> str:
        if handle:
            split_handle(handle)
        return handle
