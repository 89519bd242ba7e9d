"""An agent's memory blocks as an edit finds them, and what an edit comes to. Pure: the caller stores it.

An edit is worked out on the blocks as they are when it is stored, not as the model saw them: two agents that edit one
block at once both get their edit, or the later one is told why not.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from shared.domain.agents import Block
from shared.domain.errors import HoldfastError
from shared.domain.ids import BlockId
from shared.domain.messages import ToolReturn

READ_ONLY = "This block is read-only and cannot be edited."


class RefusedEdit(HoldfastError):
    """The memory cannot be edited like that. The message is for the model, so that it can do better."""


class EditedMemory(msgspec.Struct, frozen=True):
    """What an edit came to: the blocks that are to be stored, and what the model is told."""

    text: str
    changed: Sequence[Block] = ()
    made: Sequence[Block] = ()
    detached: Sequence[BlockId] = ()
    """These blocks leave the agent; other agents that have them keep them."""


class EditedBlock(msgspec.Struct, frozen=True):
    """A block that an edit has changed."""

    id: BlockId
    version: int
    """The one that the edit was worked out on. What it left is the next one."""


class FinishedEdit(msgspec.Struct, frozen=True):
    """An edit that was made: what the model is told, and the blocks that are other ones now."""

    result: ToolReturn
    edited: Sequence[EditedBlock] = ()


class Memory(msgspec.Struct, frozen=True):
    """An agent's blocks, as an edit finds them."""

    blocks: Sequence[Block]
    seen: Mapping[BlockId, int]
    """The versions of the blocks that the model was shown. What it writes anew must be what it has seen."""
    new_block: Callable[[str, str, str], Block]
    """Makes a block of a label, a text and a description."""

    def block(self, label: str) -> Block:
        """The block of this label. Raises `RefusedEdit`."""
        found = next((block for block in self.blocks if block.label == label), None)
        if found is None:
            raise RefusedEdit(f"There is no memory block labelled {label!r}. Available: {self._labels()}.")
        return found

    def writable(self, label: str) -> Block:
        """The block of this label. Raises `RefusedEdit` when there is none, or it is read-only."""
        block = self.block(label)
        if block.read_only:
            raise RefusedEdit(READ_ONLY)
        return block

    def refuse_label(self, label: str) -> None:
        """Raises `RefusedEdit` for a label that is taken, or none."""
        if not label:
            raise RefusedEdit("The path names no memory block: write /memories/ and the block's label.")
        if any(block.label == label for block in self.blocks):
            raise RefusedEdit(f"There is a memory block labelled {label!r} already.")

    def _labels(self) -> str:
        return ", ".join(block.label for block in self.blocks) or "none"


def written(block: Block, value: str) -> EditedMemory:
    """The block with its new text, which is also what the model is told, as on the wire. Raises `RefusedEdit`."""
    refuse_too_long(block, value)
    return EditedMemory(value, changed=[replace(block, value=value)])


def refuse_too_long(block: Block, value: str) -> None:
    """Raises `RefusedEdit` for a text that the block has no room for."""
    if len(value) > block.limit:
        raise RefusedEdit(
            f"Edit failed: Exceeds {block.limit} character limit (requested {len(value)}). Write less, or shorten the "
            "block first."
        )
