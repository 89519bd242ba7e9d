"""An MCP server with one tool, which speaks over its standard streams. It needs no package, of whatever version."""

import json
import sys
from typing import Any

from tests.kit.code_agents.places import block_at

SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}


def _result(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            about = {"name": "finder", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": [{"name": "find", "description": "Finds something", "inputSchema": SCHEMA}]}
        case "tools/call":
            what = request["params"]["arguments"]["what"]
            block_at(f"find {what}")
            return {"content": [{"type": "text", "text": f"found {what}"}], "isError": False}
        case _:
            return {}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": _result(request)}), flush=True)


if __name__ == "__main__":
    main()
