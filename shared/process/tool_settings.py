"""The settings of tools: what a call may use, the walls around it, its packages and its network."""

import re
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings

from shared.domain.tools import LEAST_TOOL_MEMORY_MB
from shared.network.allowed_hosts import AllowedHosts

_INDEX = re.compile(r"https?://[^\s/?#]+[^\s?#]*", re.IGNORECASE)


class ToolSettings(BaseSettings):
    """Fields of `Settings`."""

    tool_timeout: float = Field(default=180.0, gt=0, description="Seconds that one tool call may take.")
    tool_grace: float = Field(default=2.0, ge=0, description="Seconds for a cancelled tool to clean up before SIGKILL.")
    tool_memory_mb: int = Field(
        default=512, ge=LEAST_TOOL_MEMORY_MB, description="Address space of one tool call, MiB."
    )
    tool_cpu_s: int = Field(default=180, ge=1, description="Seconds of processor time that one tool call may use.")
    tool_scratch_mb: int = Field(
        default=64, ge=1, description="MiB that a tool call may write: in all in tier 1, in one file elsewhere."
    )
    tool_processes: int = Field(
        default=0, ge=0, description="Tool calls that one worker runs at once; 0: two for each processor, at least 8."
    )
    spare_tool_processes: int = Field(
        default=2, ge=0, description="Tool calls beyond those that one worker runs for projects that have none running."
    )
    sandbox: Literal["auto", "tier1", "tier2", "process"] = Field(
        default="auto", description="The walls around tools. `auto`: the best of tier 1 and tier 2 that works here."
    )
    tool_user: str = Field(
        default="nobody", description="The user that tools run as when the worker is root: a name or a number."
    )
    tool_python: str = Field(
        default="", description="The Python that runs tools, 3.11 or newer. Empty: the worker's, or the system's."
    )
    tool_node: str = Field(
        default="", description="The Node.js that runs JavaScript, 18 or newer. Empty: that of the PATH; `off`: none."
    )
    tool_network: str = Field(
        default="",
        description="Comma list of hosts (`api.example.com`, `*.example.org:8443`) for tools with `network: host`.",
    )

    package_index: SecretStr = Field(
        default=SecretStr(""), description="URL of the package index for tools' `pip_requirements`. Empty: none."
    )
    package_dir: str = Field(default="", description="Where packages are kept. Empty: in the user's cache folder.")
    package_mb: int = Field(default=500, ge=1, description="MiB that the packages of one tool may take.")
    package_files: int = Field(default=50_000, ge=1, description="Files that the packages of one tool may have.")
    package_disk_mb: int = Field(default=10_000, ge=1, description="MiB that all packages of a machine may take.")
    package_build_s: float = Field(default=120.0, gt=0, description="Seconds for a tool's packages to be installed.")
    package_keep_days: int = Field(default=30, ge=1, description="Days that packages are kept which nobody uses.")

    @field_validator("package_index")
    @classmethod
    def _is_an_index(cls, url: SecretStr) -> SecretStr:
        if url.get_secret_value() and not _INDEX.fullmatch(url.get_secret_value()):
            raise ValueError("it should be the URL of a package index, as https://packages.example.org/simple")
        return url

    @field_validator("tool_network")
    @classmethod
    def _are_hosts(cls, text: str) -> str:
        AllowedHosts.parse(text)
        return text
