"""The official package's server as a process: `python stdio_server.py [file]`. The file gets the numbers of the
process and of one that it starts. With `flood` for a file it is no server: it writes a line without an end."""

import json
import os
import subprocess
import sys
from pathlib import Path

from mcp.server import MCPServer

mcp = MCPServer("processes", log_level="CRITICAL")


@mcp.tool()
def surroundings() -> str:
    """Returns the variables, the folder and the process group, as JSON."""
    return json.dumps({"variables": dict(os.environ), "folder": str(Path.cwd()), "group": os.getpgid(0)})


@mcp.tool()
def end() -> str:
    """Ends the process in the middle of the call."""
    os._exit(3)


if __name__ == "__main__":
    while sys.argv[1:] == ["flood"]:
        sys.stdout.write("x" * 1_000_000)
    if len(sys.argv) > 1:
        child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
        Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
    print("a line for people, which is no JSON", flush=True)
    mcp.run("stdio")
