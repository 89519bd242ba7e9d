"""Converts the messages of MCP servers to the domain's values: tools and results, within limits and as text that the
database can store."""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import mcp_types
from msgspec.structs import replace

from shared.domain.effects import KEY_PARAMETER
from shared.domain.mcp_servers import NAMES_PROBE, RemoteImage, RemoteProbe, RemoteResult, RemoteTool
from shared.json_limits import characters_of, printable, schema_flaw, shortened

LONGEST_TEXT = 1_000_000
"""Characters of a result."""
LONGEST_DESCRIPTION = 20_000
LONGEST_NAME = 200
"""Characters."""
MOST_IMAGES = 20
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The image types that model providers accept."""

_NO_CONTENT = "The tool has ended and returned nothing."


def remote_tools(tools: Iterable[mcp_types.Tool]) -> list[RemoteTool]:
    """Returns the tools of a page. A tool without a proper name, or whose schema cannot check a call, has a problem."""
    return [_remote_tool(tool) for tool in tools]


def with_probes(tools: Mapping[str, RemoteTool]) -> list[RemoteTool]:
    """Returns a server's tools, given by their names there, each with its probe."""
    return [
        tool if tool.probe is None else replace(tool, probe=_found(tool, tool.probe, tools)) for tool in tools.values()
    ]


def size_of(tool: RemoteTool) -> int:
    """Roughly the number of characters of a tool."""
    return len(tool.name) + len(tool.description) + characters_of(tool.input_schema)


def remote_result(result: mcp_types.CallToolResult) -> RemoteResult:
    """The result of a call."""
    images: list[RemoteImage] = []
    texts: list[str] = []
    left = LONGEST_TEXT
    for block in result.content:
        image = _image(block) if len(images) < MOST_IMAGES else None
        if image is not None:
            images.append(image)
            continue
        text = _text_of(block)
        texts.append(text[:left])
        left -= min(left, len(text))
    if not texts and not images and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    whole = printable("\n".join(texts))
    if not left or len(whole) > LONGEST_TEXT:
        whole = f"{whole[:LONGEST_TEXT]}... [the server sent more than {LONGEST_TEXT} characters; the rest is left out]"
    if not whole and not images:
        whole = _NO_CONTENT
    return RemoteResult(text=whole, is_error=result.is_error, images=images)


def _problem(tool: mcp_types.Tool) -> str | None:
    if not tool.name:
        return "it has no name"
    if len(tool.name) > LONGEST_NAME:
        return f"its name is longer than {LONGEST_NAME} characters"
    if printable(tool.name) != tool.name:
        return "its name has characters that cannot be stored"
    return schema_flaw(tool.input_schema)


def _remote_tool(tool: mcp_types.Tool) -> RemoteTool:
    if problem := _problem(tool):
        return RemoteTool(name=printable(tool.name[:LONGEST_NAME]), problem=problem)
    hints = tool.annotations or mcp_types.ToolAnnotations()
    description = printable(tool.description or "")
    return RemoteTool(
        name=tool.name,
        description=description[:LONGEST_DESCRIPTION],
        input_schema=tool.input_schema,
        read_only=hints.read_only_hint,
        destructive=hints.destructive_hint,
        idempotent=hints.idempotent_hint,
        probe=_named_probe((tool.meta or {}).get(NAMES_PROBE)),
    )


def _named_probe(said: object) -> RemoteProbe | None:
    if said is None:
        return None
    if not isinstance(said, str):
        return RemoteProbe(tool_name="", problem=f"_meta[{NAMES_PROBE!r}] must be the name of a tool of this server")
    return RemoteProbe(tool_name=printable(said[:LONGEST_NAME]))


def _found(tool: RemoteTool, named: RemoteProbe, tools: Mapping[str, RemoteTool]) -> RemoteProbe:
    """The probe of a tool. It must be read-only, because workers call it without a person's approval."""
    if named.problem:
        return named
    probe = tools.get(named.tool_name)
    if probe is None:
        return replace(named, problem="the server lists no usable tool of this name")
    if probe.read_only is not True:
        return replace(named, problem="it is not marked as read-only (readOnlyHint: true)")
    given = {*_parameters(tool), KEY_PARAMETER}
    return replace(named, parameters=[name for name in _parameters(probe) if name in given])


def _parameters(tool: RemoteTool) -> list[str]:
    properties: object = tool.input_schema.get("properties")
    return list(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else []


def _image(block: mcp_types.ContentBlock) -> RemoteImage | None:
    """The image of a block, if models accept its type."""
    match block:
        case mcp_types.ImageContent(data=data, mime_type=media_type):
            pass
        case mcp_types.EmbeddedResource(resource=mcp_types.BlobResourceContents(blob=data, mime_type=media_type)):
            pass
        case _:
            return None
    kind = (media_type or "").partition(";")[0].strip().lower()
    if kind not in IMAGE_TYPES:
        return None
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return RemoteImage(kind, data) if content else None


def _text_of(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent(text=text):
            return text
        case mcp_types.ImageContent(mime_type=kind):
            return f"[Image omitted: {shortened(kind)}]"
        case mcp_types.AudioContent(mime_type=kind):
            return f"[Audio omitted: {shortened(kind)}]"
        case mcp_types.ResourceLink():
            return " ".join(_of_link(block))
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.EmbeddedResource(resource=resource):
            return f"[Resource omitted: {shortened(resource.uri)} ({shortened(resource.mime_type or 'unknown type')})]"


def _of_link(link: mcp_types.ResourceLink) -> Iterator[str]:
    yield f"[Resource: {shortened(link.name)}"
    if link.description:
        yield f"({shortened(link.description)})"
    yield f"at {shortened(link.uri)}]"


def error_text(error: Any) -> str:
    """A server's description of an error, short and as text that the database can store."""
    return shortened(printable(str(cast("object", error))))
