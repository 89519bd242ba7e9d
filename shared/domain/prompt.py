"""The text that a model is given as its instructions. Pure: the API stores it, the worker sends it, both agree."""

from collections.abc import Iterable

from shared.domain.agents import Agent, Block

DEFAULT_SYSTEM = (
    "You are a capable assistant. Use the tools that you are given when they help, and keep going until the task is "
    "done or you need something from the user. Say so plainly when you do not know or cannot do a thing."
)
"""What an agent is told when its creator gave no instructions."""


def render_system(agent: Agent, blocks: Iterable[Block]) -> str:
    """The agent's instructions followed by its memory blocks, in the order in which they were attached."""
    memory = render_memory(blocks)
    return f"{agent.system}\n\n{memory}" if memory else agent.system


def render_memory(blocks: Iterable[Block]) -> str:
    """The memory section alone; empty without blocks."""
    sections = [_render_block(block) for block in blocks]
    if not sections:
        return ""
    opening = "This is what you remember. It stays in view during the whole conversation."
    return "\n\n".join(["<memory_blocks>\n" + opening, *sections, "</memory_blocks>"])


def _render_block(block: Block) -> str:
    lines = [f"<{block.label}>"]
    if block.description:
        lines.append(f"<description>{block.description}</description>")
    size = f"{len(block.value)} of {block.limit} characters"
    lines.append(f"<size>{size}{', read-only' if block.read_only else ''}</size>")
    lines.append(f"<value>\n{block.value}\n</value>")
    lines.append(f"</{block.label}>")
    return "\n".join(lines)
