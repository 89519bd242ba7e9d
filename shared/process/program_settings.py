"""The settings of the programs that a worker runs, tools and agents of an operator's own code: fields of `Settings`."""

import re
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings

from shared.domain.tools import LEAST_TOOL_MEMORY_MB
from shared.mcp.commands import AllowedCommands
from shared.network.addresses import AllowedHosts

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
    package_keep_days: int = Field(default=30, ge=1, description="Days that unused packages are kept.")

    mcp_commands: str = Field(
        default="",
        description="Command lines, one a line or with `;` between, that MCP servers of type `stdio` may be. The last "
        "word `*` stands for any further arguments.",
    )
    mcp_timeout: float = Field(
        default=60.0, gt=0, description="Seconds that one call of an MCP server's tool may take."
    )
    mcp_always_ask: bool = Field(
        default=False, description="Have a person decide on each call of an MCP server's tool."
    )

    @field_validator("mcp_commands")
    @classmethod
    def _are_command_lines(cls, text: str) -> str:
        AllowedCommands.parse(text)
        return text

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


class AgentsSettings(BaseSettings):
    """Fields of `Settings`: the agents of an operator's own code."""

    agents: str = Field(
        default="", description="Comma list of Python modules whose agents a worker runs, as `myproject.agents`."
    )
    agents_python: str = Field(default="", description="The Python that imports them. Empty: the worker's own.")
    agents_env_file: str = Field(
        default="", description="A file with one `NAME=value` per line, for the environment of agents alone."
    )
    agents_models: Literal["own", "worker"] = Field(default="own", description="Whose models agents ask, unless told.")
    agents_max_mb: int = Field(
        default=0, ge=0, description="MiB that a process of agents may have for itself; 0: any number."
    )
    agents_per_process: int = Field(
        default=1, ge=1, le=1000, description="Runs at once that share a process, where their agents may."
    )
    agents_grace_s: float = Field(
        default=1.0, ge=0, description="Seconds for a cancelled agent to clean up before its process is killed."
    )
