"""Sign-ins at MCP servers on Letta's wire: events for the client's stream, and the page in the person's browser."""

from html import escape
from typing import Any, assert_never

from pydantic_core import to_json

from api.letta.mcp_servers import wire_remote_tool
from api.mcp_sign_in import Attempt, Failed, Finished, Needed, Opened, Pause, Reached, SignInEvent


def wire_sign_in_event(event: SignInEvent) -> bytes:
    """The frame of an event."""
    return b"data: %b\n\n" % to_json(_fields(event))


def _fields(event: SignInEvent) -> dict[str, Any]:
    match event:
        case Attempt(server):
            return {"event": "connection_attempt", "server_name": server.name}
        case Needed():
            return {"event": "oauth_required", "message": "The server asks for a person to sign in (OAuth)"}
        case Opened(url, session_id):
            return {"event": "authorization_url", "url": url, "session_id": session_id}
        case Pause():
            return {"event": "waiting_for_auth", "message": "Open the URL in a browser, and sign in there"}
        case Reached(tools):
            return {"event": "success", "tools": [wire_remote_tool(tool) for tool in tools]}
        case Failed(reason):
            return {"event": "error", "message": reason}
        case _ as never:
            assert_never(never)


def wire_finished(finished: Finished) -> dict[str, Any]:
    """The outcome of a sign-in. The number of tools is Holdfast's own field."""
    server, tools = finished.server, finished.tools
    had = server.problem if tools is None else f"the project has {tools} of its tools"
    return {
        "status": "success",
        "message": f"Signed in at {server.name}: {had}. You can close this page",
        "server_url": server.url,
        "tools": tools,
    }


def sign_in_page(title: str, text: str) -> str:
    """The outcome as a page for the person. It loads nothing, and browsers run no script in it."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><h1>{title}</h1><p>{escape(text)}.</p></body></html>"
    )
