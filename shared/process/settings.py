"""Every setting of the product: an environment variable `HOLDFAST_…`, its unit and its default.

`main.py` and the command line read them once, and pass the values to the rest. Model keys and base URLs come from the
providers' usual variables, which `worker/models` reads.

`wrong_values` and `unknown_names` report an operator's mistakes, one line for each.
"""

import re
import ssl
from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.domain.limits import NANO, Budgets, Limit, Limits, ProjectLimits, parse_own_limits
from shared.domain.models import split_handle
from shared.domain.run_trees import TreeLimits
from shared.process.program_settings import AgentsSettings, ToolSettings

# The settings of a process's reports about itself: health and metrics, logs, traces. The SDK that exports traces also
# reads OpenTelemetry's own variables, `OTEL_…`: a receiver's keys and certificates, the name of the deployment, and the
# length of the span queue. docs/operations/traces.md lists them.


class TelemetrySettings(BaseSettings):
    """Fields of `Settings`."""

    worker_port: int = Field(
        default=0, ge=0, le=65535, description="Port of a worker's health checks and metrics; 0: none."
    )
    access_log: bool = Field(default=True, description="Log each request to the API when its answer has ended.")
    worker_host: str = Field(default="127.0.0.1", description="Address that this port is opened on.")

    otlp_endpoint: str = Field(
        default="", description="Where traces are sent, as OTLP over HTTP: `http://collector:4318`. Empty: nowhere."
    )
    trace_sample: float = Field(
        default=1.0, ge=0, le=1, description="The part of the traces beginning here that is sent: 0.1 is one in ten."
    )
    trace_content: bool = Field(
        default=False, description="Send the texts of users, models and tools with the traces, too."
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        """The address must contain no password, because the log shows it."""
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query):
            raise ValueError("it should be the address of a receiver of OTLP over HTTP, as http://collector:4318")
        if parts.username or parts.password:
            raise ValueError("it should hold no password: put one into OTEL_EXPORTER_OTLP_HEADERS")
        return url


LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

Dollars = Annotated[float, Field(ge=0, le=1_000_000_000)]
"""Accounts count billionths of a dollar in 64 bits."""

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", re.IGNORECASE)
_BASE = re.compile(r"https?://[^?#@\s]+", re.IGNORECASE)
_HOST = re.compile(r"[^/?#@\s:]+|\[?[0-9a-f:]+\]?", re.IGNORECASE)


class Settings(ToolSettings, AgentsSettings, TelemetrySettings):
    """The settings of one process."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", env_file=None, extra="ignore")

    database_url: str = Field(default="", description="`postgresql://…` or `sqlite:///path`.")
    database_connections: int = Field(
        default=20, ge=2, description="Connections to Postgres that one process may hold."
    )
    redis_url: str = Field(default="", description="`redis://host:port/db`. Empty: embedded (`holdfast dev` only).")
    event_log_url: str = Field(
        default="",
        description="Where runs' event logs are kept: `redis+cluster://host:port,host:port`, or the URL of one Redis. "
        "Empty: in `HOLDFAST_REDIS_URL`.",
    )
    api_keys: SecretStr = Field(
        default=SecretStr(""),
        description="Comma list of `project=key`. Empty: one project, no key asked, loopback only.",
    )
    api_keys_file: str = Field(
        default="", description="A file with one `project=key` per line, beside `HOLDFAST_API_KEYS`."
    )
    trusted_proxies: str = Field(
        default="", description="Comma list of addresses and networks whose `X-Forwarded-For` is believed."
    )
    row_level_security: bool = Field(
        default=True, description="Tell Postgres for each request whose rows it may see, so that its policies hold."
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
    reader_timeout: float = Field(
        default=300.0, gt=0, description="Seconds that a stream waits for a client that takes nothing of it."
    )
    max_connections: int = Field(
        default=10_000, ge=10, description="Connections that the API has open at once; others get a 503."
    )
    strict_requests: bool = Field(
        default=False, description="Refuse requests with fields that have no effect, unless X-Holdfast-Strict says no."
    )
    docs: Literal["auto", "on", "off"] = Field(
        default="auto", description="Serve `/docs` and `/openapi.json`. `auto`: where no key is asked for."
    )

    encryption_key: SecretStr = Field(
        default=SecretStr(""),
        description="Comma list of `id:key` that agents' secrets are encrypted with: the first one writes, all read.",
    )
    encryption_key_file: str = Field(default="", description="The path of a file with those keys, instead.")

    max_runs: int = Field(default=100, ge=1, description="Runs that one worker executes at once.")
    lease_s: float = Field(default=6.0, gt=0.2, description="Seconds for which a claim holds without renewal.")
    database_patience: float = Field(
        default=60.0, ge=0, description="Seconds that a worker repeats a write of a run while the database is away."
    )
    sweep_s: float = Field(default=5.0, gt=0, description="Seconds between two looks for orphaned runs.")
    max_attempts: int = Field(
        default=3,
        ge=1,
        description="Workers that may be lost with a run before it stores a step; the last one had it alone.",
    )
    child_depth: int = Field(
        default=4, ge=0, le=50, description="Levels of runs that agents may start through agents; 0: they start none."
    )
    child_runs: int = Field(
        default=50, ge=0, le=10_000, description="Runs that one request may start through agents, on all levels."
    )
    child_wait: float = Field(
        default=86_400.0, gt=0, description="Seconds that an agent waits for the answer of another agent."
    )
    stream_ttl_s: int = Field(default=3600, ge=1, description="Seconds that Redis keeps a log after its last event.")
    retain_days: int = Field(
        default=0,
        ge=0,
        le=36_500,
        description="Days that the log and the steps of a run are kept after its end; 0: for ever.",
    )
    retain_audit_days: int = Field(
        default=0, ge=0, le=36_500, description="Days that the audit log keeps an event; 0: for ever."
    )
    retain_budget_days: int = Field(
        default=0, ge=0, le=36_500, description="Days that the accounts of budgets are kept; 0: for ever."
    )
    drain_s: float = Field(
        default=5.0,
        ge=0,
        description="Seconds that SIGTERM lets steps finish before runs are handed over. `holdfast dev` takes 0.",
    )

    spare_runs: int = Field(
        default=10, ge=0, description="Runs beyond those that one worker begins for projects that have none in flight."
    )
    requests_per_s: float = Field(default=2000.0, ge=0, description="Requests that a project may send per second.")
    key_requests_per_s: float = Field(default=2000.0, ge=0, description="Requests that one key may send per second.")
    runs_in_flight: int = Field(default=1000, ge=0, description="Runs of one project that workers execute at once.")
    queued_runs: int = Field(default=20_000, ge=0, description="Runs of one project that may wait to be executed.")
    submissions_at_once: int = Field(
        default=8, ge=1, description="Submissions that one API process stores at once; the others wait for their turn."
    )
    waiting_submissions: int = Field(
        default=5000, ge=0, description="Submissions that may wait for their turn in one API process."
    )
    submission_wait: float = Field(default=30.0, gt=0, description="Seconds that a submission waits for its turn.")
    readers: int = Field(default=5000, ge=0, description="Streams that a project may have open at once.")
    key_readers: int = Field(default=5000, ge=0, description="Streams that one key may have open at once.")
    project_limits: str = Field(
        default="", description='The limits of some projects that differ: `{"project": {"readers": 10}}`.'
    )
    max_message_chars: int = Field(
        default=4_000_000, ge=100, description="Characters of all texts of one message that is sent."
    )
    max_tool_source_chars: int = Field(
        default=131_072, ge=100, le=131_072, description="Characters of the source of a tool."
    )
    max_steps: int = Field(default=1000, ge=1, description="The highest `max_steps` that a submission may ask for.")

    first_event_timeout: float = Field(default=120.0, gt=0, description="Seconds for a model to begin its answer.")
    idle_timeout: float = Field(default=120.0, gt=0, description="Seconds of silence inside a model's answer.")
    run_timeout: float = Field(default=3600.0, gt=0, description="Seconds of work that one run may take.")
    model_retries: int = Field(default=3, ge=0, description="Retries of a failed model call before its first event.")
    default_model: str = Field(
        default="", description="The model of an agent that is made without one, or with one that leaves it open."
    )
    builtin_models: bool = Field(
        default=False, description="Offer the `builtin/…` models. `holdfast dev` does unless this says no."
    )

    run_token_budget: int = Field(default=0, ge=0, description="Tokens that one run may use, in and out; 0: no limit.")
    run_cost_budget: Dollars = Field(default=0, description="US dollars that one run may cost; 0: no limit.")
    agent_daily_tokens: int = Field(default=0, ge=0, description="Tokens that one agent may use a day; 0: no limit.")
    agent_daily_cost: Dollars = Field(default=0, description="US dollars that one agent may cost a day.")
    key_daily_tokens: int = Field(default=0, ge=0, description="Tokens that one API key's runs may use a day.")
    key_daily_cost: Dollars = Field(default=0, description="US dollars that one API key's runs may cost a day.")
    project_daily_tokens: int = Field(default=0, ge=0, description="Tokens that one project may use a day.")
    project_daily_cost: Dollars = Field(default=0, description="US dollars that one project may cost a day.")
    budget_action: Literal["fail", "wait"] = Field(
        default="fail", description="The fate of a run whose next call would exceed a day's budget."
    )
    prices_file: Path | None = Field(
        default=None, description="JSON file of the prices of models, before published prices."
    )

    cancel_wait_s: float = Field(default=5.0, ge=0, description="Seconds that a cancel waits for the run to stop.")
    keepalive_s: float = Field(default=20.0, gt=0, description="Seconds of silence before a stream gets a ping.")
    callback_allow_private: bool = Field(default=False, description="Allow callbacks to private addresses.")
    callback_secret: SecretStr = Field(
        default=SecretStr(""),
        description="Signs callbacks (Standard Webhooks), with a secret for each project that is made of it.",
    )

    public_url: str = Field(
        default="",
        description="Where browsers reach the API, as `https://holdfast.example.com`: they come back there from a "
        "sign-in at an MCP server. Empty: where the request that begins it has reached the API.",
    )
    reachable_networks: str = Field(
        default="",
        description="Comma list of networks (`10.2.0.0/16`) where callers' URLs may lead although they are not public.",
    )
    ca_file: str = Field(
        default="", description="PEM file of certificate authorities that are trusted beside the system's."
    )

    crash_at: str = Field(default="", description="For tests of recovery: `shared/crash_points.py`.")
    log_level: str = Field(default="INFO", description="DEBUG, INFO, WARNING or ERROR.")
    log_json: bool = Field(default=False, description="Log as JSON lines.")
    log_tracebacks: bool = Field(
        default=False, description="Log errors with their texts and tracebacks, which may contain texts of users."
    )
    data_dir: Path = Field(default=Path(".holdfast"), description="Where `holdfast dev` keeps its database.")

    @property
    def budgets(self) -> Budgets:
        """The limits on what runs may spend."""
        return Budgets(
            run=_limit(self.run_token_budget, self.run_cost_budget),
            agent=_limit(self.agent_daily_tokens, self.agent_daily_cost),
            key=_limit(self.key_daily_tokens, self.key_daily_cost),
            project=_limit(self.project_daily_tokens, self.project_daily_cost),
            waits=self.budget_action == "wait",
        )

    @property
    def tree_limits(self) -> TreeLimits:
        """The limits on runs that agents start through other agents."""
        return TreeLimits(depth=self.child_depth, runs=self.child_runs, wait=timedelta(seconds=self.child_wait))

    @field_validator("trusted_proxies", "reachable_networks")
    @classmethod
    def _are_networks(cls, text: str, of: ValidationInfo) -> str:
        for part in listed(text):
            ip_network(part, strict=of.field_name == "reachable_networks")
        return text

    @field_validator("public_url")
    @classmethod
    def _is_a_base(cls, url: str) -> str:
        if url and not _BASE.fullmatch(url):
            raise ValueError("it should be an address without query, as https://holdfast.example.com")
        return url

    @field_validator("project_limits")
    @classmethod
    def _has_limits(cls, text: str) -> str:
        parse_own_limits(text)
        return text

    @property
    def limits(self) -> ProjectLimits:
        """The limits of every project."""
        each = Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})
        return ProjectLimits(each, parse_own_limits(self.project_limits))

    @field_validator("ca_file")
    @classmethod
    def _holds_certificates(cls, path: str) -> str:
        if path:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
            except OSError as error:
                raise ValueError(f"no certificates can be read from {path!r}: {error}") from error
        return path

    @field_validator("default_model")
    @classmethod
    def _is_a_model(cls, handle: str) -> str:
        if handle:
            split_handle(handle)
        return handle

    @field_validator("log_level")
    @classmethod
    def _is_a_level(cls, level: str) -> str:
        if level.upper() not in LOG_LEVELS:
            raise ValueError(f"it should be one of {', '.join(LOG_LEVELS)}")
        return level

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, text: str) -> str:
        for origin in listed(text):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin: write it as https://app.example.org, without a path")
        return text

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, text: str) -> str:
        for name in listed(text):
            if not _HOST.fullmatch(name):
                raise ValueError(f"{name!r} is no host's name: write it as app.example.org, without scheme and port")
        return text


def listed(text: str) -> list[str]:
    """The entries of a comma list."""
    return text.replace(",", " ").split()


def _limit(tokens: int, dollars: float) -> Limit:
    return Limit(tokens or None, round(dollars * NANO) or None)


PREFIX = "HOLDFAST_"

OF_CLIENTS = ("HOLDFAST_URL", "HOLDFAST_API_KEY")
"""The server and the key for the client commands. They are not settings of a server."""

FOR_TESTS = "HOLDFAST_TEST_"
"""Prefix of the variables for this project's tests. A command that a test starts may inherit them."""

_OF_KUBERNETES = re.compile(r"HOLDFAST_(?:\w+_)?(?:SERVICE_(?:HOST|PORT(?:_\w+)?)|PORT(?:_\d+_(?:TCP|UDP|SCTP)\w*)?)")
"""Variables that Kubernetes adds to every pod if a service is named `holdfast` or `holdfast-api`."""


def unknown_names(environment: Iterable[str]) -> list[str]:
    """A line for each variable that looks like a setting and is not one."""
    known = [f"{PREFIX}{field.upper()}" for field in Settings.model_fields] + list(OF_CLIENTS)
    return [
        f"{name} is no setting{_nearest(name, known)} docs/settings.md lists them all"
        for name in sorted(environment)
        if name.startswith(PREFIX)
        and name not in known
        and not name.startswith(FOR_TESTS)
        and not _OF_KUBERNETES.fullmatch(name)
    ]


def _nearest(name: str, known: list[str]) -> str:
    # All names have the prefix, so with it every name would be similar.
    near = get_close_matches(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known], n=1)
    return f": did you mean {PREFIX}{near[0]}?" if near else ";"


def wrong_values(error: ValidationError) -> list[str]:
    """A line for each setting that pydantic refuses. No line contains a value that may be, or contain, a secret."""
    return [_wrong_value(flaw) for flaw in error.errors()]


def _wrong_value(flaw: ErrorDetails) -> str:
    field = str(flaw["loc"][0])
    said = flaw["msg"].removeprefix("Value error, ")
    said = "it" + said.removeprefix("Input") if said.startswith("Input ") else said
    return f"{PREFIX}{field.upper()}{_given(field, flaw['input'])}: {said}"


def _given(field: str, value: object) -> str:
    known = Settings.model_fields.get(field)
    is_secret = known is None or known.annotation is SecretStr or field.endswith(("_url", "_endpoint"))
    return "" if is_secret else f" is {str(value)[:100]!r}"
