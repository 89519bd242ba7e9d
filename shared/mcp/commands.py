"""The commands that MCP servers of type stdio may run, as the operator lists them. A worker or an API process runs them
as its own user and without isolation, so no command is allowed unless it is listed."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from shared.domain.errors import InvalidRequest

ANY_ARGUMENTS = "*"
MOST_VARIABLES = 50

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_CHANGES_THE_PROGRAM = re.compile(
    r"PATH|IFS|ENV|SHELLOPTS|BASHOPTS|BASH_.*|LD_.*|DYLD_.*|PYTHON.*|NODE_(?!ENV$).*|NPM_.*|UV_.*|PIP_.*|PERL.*|RUBY.*"
    r"|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|GIT_.*|GCONV_PATH|HOSTALIASES|DOTNET_.*|CORECLR_.*",
    re.IGNORECASE,
)
"""Variables by which a caller would choose the code that a listed command runs. `NODE_ENV` is not one of them: it only
selects one of the author's own ways to run the program."""


@dataclass(frozen=True)
class AllowedCommands:
    """Command lines as lists of words. The last word `*` means any further arguments."""

    lines: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses `uvx mcp-server-time; /opt/tools/serve *`. Lines or semicolons separate commands, and quotes are those
        of a shell. Raises `ValueError`."""
        words = (tuple(shlex.split(line)) for line in re.split(r"[;\n]", text))
        lines = tuple(line for line in words if line)
        for line in lines:
            if line[0] == ANY_ARGUMENTS or ANY_ARGUMENTS in line[:-1]:
                raise ValueError(f"{shlex.join(line)!r}: `*` may only be the last word, behind a command")
        return cls(lines)

    def refuse_others(self, command: str, args: Sequence[str], variables: Iterable[str]) -> None:
        """Raises `InvalidRequest` for a command line that is not listed, and for variables that it must not get."""
        asked = (command, *args)
        if not any(_fits(asked, line) for line in self.lines):
            raise InvalidRequest(
                f"command: the operator of this server has not listed {shlex.join(asked)[:200]!r}. An operator lists "
                "command lines in HOLDFAST_MCP_COMMANDS; a server at a URL needs no such entry",
                field="command",
            )
        names = list(variables)
        if len(names) > MOST_VARIABLES:
            raise InvalidRequest(f"env: {len(names)} variables; {MOST_VARIABLES} are the most", field="env")
        for name in names:
            if not _VARIABLE.fullmatch(name) or _CHANGES_THE_PROGRAM.fullmatch(name):
                raise InvalidRequest(
                    f"env: the variable {name[:100]!r} cannot be set for an MCP server, because it may change which "
                    "code the command runs, or is no variable's name",
                    field="env",
                )


def _fits(asked: tuple[str, ...], line: tuple[str, ...]) -> bool:
    if line[-1] == ANY_ARGUMENTS:
        return asked[: len(line) - 1] == line[:-1]
    return asked == line


NO_COMMANDS = AllowedCommands()
"""The default: no commands."""
