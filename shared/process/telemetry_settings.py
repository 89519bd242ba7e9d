"""The settings of what a process tells about itself: health and metrics, logs, traces.

The SDK that exports traces reads OpenTelemetry's own variables beside these, `OTEL_…`: a receiver's keys and
certificates, what the deployment is called, and how long the queue of spans is. docs/operations/traces.md has them.
"""

from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings


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
        default=False, description="Send what users, models and tools said with the traces, too."
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        """Of a receiver, and nothing that only it should know: the address is named in the log."""
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query):
            raise ValueError("it should be the address of a receiver of OTLP over HTTP, as http://collector:4318")
        if parts.username or parts.password:
            raise ValueError("it should hold no password: put one into OTEL_EXPORTER_OTLP_HEADERS")
        return url
