"""The memory that an agent must have. Every edit of its model is applied here, too.

It uses no code of the product, so the result of an edit is computed twice, independently.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SHARED = "shared"
"""The label of the block that both agents write to."""

RULES, MOTTO = "rules", "motto"
READ_ONLY = "Be kind."
MOTTO_LIMIT = 40


@dataclass(frozen=True)
class Edit:
    """One call of a memory tool."""

    tool: str
    arguments: Mapping[str, Any]
    is_refused: bool = False
    """Whether the tool must refuse the edit, with a reason for the model."""


@dataclass(frozen=True)
class Sight:
    """The memory that a request to the model must have."""

    blocks: Mapping[str, str]
    own_lines: tuple[str, ...]
    """The agent's lines in the shared block, in order."""


@dataclass
class Account:
    """The memory of one agent."""

    name: str
    blocks: dict[str, str] = field(
        default_factory=lambda: {"human": "", "persona": "I take notes.", RULES: READ_ONLY, MOTTO: "Short."}
    )
    """The text of each block except the shared one, by label."""
    own_lines: list[str] = field(default_factory=list[str])
    passages: list[str] = field(default_factory=list[str])
    """The passages in archival memory, in the order of their insertion."""
    changes: Counter[str] = field(default_factory=Counter[str])
    """How often each block was changed."""

    def sight(self) -> Sight:
        return Sight(dict(self.blocks), tuple(self.own_lines))

    def lines(self, label: str) -> list[str]:
        return self.blocks[label].split("\n") if self.blocks[label] else []

    def write(self, label: str, lines: list[str]) -> None:
        """Replaces the lines of a block."""
        self.blocks[label] = "\n".join(lines)
        self.changes[label] += 1

    def swap(self, label: str, old: str, new: str) -> None:
        """Replaces each occurrence of a text in a block."""
        self.blocks[label] = self.blocks[label].replace(old, new)
        self.changes[label] += 1

    def create(self, label: str, text: str) -> None:
        self.blocks[label] = text

    def rename(self, label: str, new: str) -> None:
        self.blocks[new] = self.blocks.pop(label)
        self.changes[new] = self.changes.pop(label, 0) + 1

    def delete(self, label: str) -> None:
        del self.blocks[label]
        self.changes.pop(label, None)

    def share(self, old: str | None, new: str) -> None:
        """Adds a line of the agent to the shared block, or replaces an old one."""
        if old is None:
            self.own_lines.append(new)
        else:
            self.own_lines[self.own_lines.index(old)] = new
        self.changes[SHARED] += 1
