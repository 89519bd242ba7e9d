"""An agent's memory blocks as an edit finds them, and the edit's result. Pure: the caller stores it.

An edit is computed from the blocks as they are when it is stored, not as the model saw them. If two agents edit one
block at once, both edits are made, or the later one gets the reason for its refusal.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.domain.agents import Block
from shared.domain.errors import HoldfastError
from shared.domain.ids import BlockId

READ_ONLY = "This block is read-only and cannot be edited."


class RefusedEdit(HoldfastError):
    """The memory cannot be edited like that. The message is for the model, so that it can correct the call."""


class EditedMemory(msgspec.Struct, frozen=True):
    """The outcome of an edit: the blocks to store, and the result for the model."""

    text: str
    changed: Sequence[Block] = ()
    made: Sequence[Block] = ()
    detached: Sequence[BlockId] = ()
    """Blocks to detach from the agent; other agents that have them keep them."""


class Memory(msgspec.Struct, frozen=True):
    """An agent's blocks, as an edit finds them."""

    blocks: Sequence[Block]
    seen: Mapping[BlockId, int]
    """The versions of the blocks that the model was shown. It may rewrite a block only in the version that it has
    seen."""
    new_block: Callable[[str, str, str], Block]
    """Makes a block of a label, a text and a description."""

    def writable(self, label: str) -> Block:
        """The block of this label. Raises `RefusedEdit` if there is no such block, or it is read-only."""
        found = next((block for block in self.blocks if block.label == label), None)
        if found is None:
            labels = ", ".join(block.label for block in self.blocks) or "none"
            raise RefusedEdit(f"There is no memory block labelled {label!r}. Available: {labels}.")
        if found.read_only:
            raise RefusedEdit(READ_ONLY)
        return found

    def refuse_label(self, label: str) -> None:
        """Raises `RefusedEdit` for an empty label, or one that is taken."""
        if not label:
            raise RefusedEdit("The path names no memory block: write /memories/ and the block's label.")
        if any(block.label == label for block in self.blocks):
            raise RefusedEdit(f"There is a memory block labelled {label!r} already.")


def written(block: Block, value: str) -> EditedMemory:
    """The block with its new text, which is also the result for the model. Raises `RefusedEdit`."""
    refuse_too_long(block, value)
    return EditedMemory(value, changed=[replace(block, value=value)])


def refuse_too_long(block: Block, value: str) -> None:
    """Raises `RefusedEdit` for a text that the block has no room for."""
    if len(value) > block.limit:
        raise RefusedEdit(
            f"Edit failed: Exceeds {block.limit} character limit (requested {len(value)}). Write less, or shorten the "
            "block first."
        )


# The patches of `memory_apply_patch`: edits of memory blocks in the form of a unified diff, without line numbers.
#
# A patch without headers is for one block. With headers it is for several, and changes all or none of them:
#
#     *** Update Block: human
#     @@
#      Name: Ada.
#     -Lives in Ulm.
#     +Lives in Bonn.
#     *** Move to: user
#     *** Add Block: notes
#     Description: What to remember.
#     +Nothing yet.
#     *** Delete Block: drafts
#
# A line that is no part of a patch is refused, because ignoring it would change the meaning of the patch.


_HEADER = re.compile(r"\*\*\* (Add Block|Delete Block|Update Block|Move to):(.*)")
_FRAMES = frozenset({"*** Begin Patch", "*** End Patch", "*** End of File"})
_DESCRIPTION = "Description:"


def apply_patch(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    """Computes the result of a call of `memory_apply_patch`. Raises `RefusedEdit`."""
    lines: list[str] = [line for line in arguments["patch"].split("\n") if line.strip() not in _FRAMES]
    if not any(_HEADER.match(line) for line in lines):
        block = memory.writable(arguments["label"])
        return written(block, _patched(block.value, lines))
    after, done = memory, list[str]()
    for section in _sections(lines):
        after = _after(after, section)
        done.append(f"- {section.verb}: {section.label if section.verb != 'Move to' else section.new_label}")
    before, now = ({block.id: block for block in one.blocks} for one in (memory, after))
    return EditedMemory(
        "The patch is applied, and your memory shows it from now on:\n" + "\n".join(done),
        changed=[block for block in after.blocks if before.get(block.id, block) != block],
        made=[block for block in after.blocks if block.id not in before],
        detached=[block_id for block_id in before if block_id not in now],
    )


class _Section(msgspec.Struct, frozen=True):
    """A header of a patch and the lines after it."""

    verb: str
    label: str
    """The block's label when this section is applied; an earlier section may have changed it."""
    new_label: str
    lines: list[str]


def _sections(lines: Sequence[str]) -> list[_Section]:
    sections: list[_Section] = []
    for line in lines:
        header = _HEADER.match(line)
        if header is None:
            if sections:
                sections[-1].lines.append(line)
            elif line.strip():
                raise RefusedEdit(f"The line {line!r} stands before the first header of the patch.")
            continue
        verb, name = header[1], header[2].strip()
        if not name:
            raise RefusedEdit(f"The header '*** {verb}:' names no memory block.")
        label = name
        if verb == "Move to":
            if not sections:
                raise RefusedEdit("'*** Move to:' stands behind the header of the memory block that it renames.")
            label = sections[-1].new_label
            if sections[-1].verb == "Update Block" and not "".join(sections[-1].lines).strip():
                sections.pop()
        sections.append(_Section(verb, label, name, []))
    return sections


def _after(memory: Memory, section: _Section) -> Memory:
    """The memory after a section of the patch."""
    if section.verb == "Add Block":
        return _with(memory, _added(memory, section))
    block = memory.writable(section.label)
    if section.verb == "Delete Block":
        if "".join(section.lines).strip():
            raise RefusedEdit(f"'*** Delete Block: {block.label}' has lines behind it. It takes none.")
        return replace(memory, blocks=[other for other in memory.blocks if other.id != block.id])
    if section.verb == "Move to":
        memory.refuse_label(section.new_label)
        block = replace(block, label=section.new_label)
        if not "".join(section.lines).strip():
            return _with(memory, block)
    value = _patched(block.value, section.lines)
    refuse_too_long(block, value)
    return _with(memory, replace(block, value=value))


def _with(memory: Memory, block: Block) -> Memory:
    """The memory with this block, which is new or replaces its earlier version."""
    if any(other.id == block.id for other in memory.blocks):
        return replace(memory, blocks=[block if other.id == block.id else other for other in memory.blocks])
    return replace(memory, blocks=[*memory.blocks, block])


def _added(memory: Memory, section: _Section) -> Block:
    memory.refuse_label(section.label)
    lines, description = section.lines, ""
    if lines and lines[0].startswith(_DESCRIPTION):
        lines, description = lines[1:], lines[0].removeprefix(_DESCRIPTION).strip()
    wrong = next((line for line in lines if line.strip() and not line.startswith("+")), None)
    if wrong is not None:
        raise RefusedEdit(f"Each line of the new memory block {section.label!r} begins with '+'. Not so: {wrong!r}.")
    text = "\n".join(line.removeprefix("+") for line in lines).strip("\n")
    block = memory.new_block(section.label, text, description)
    refuse_too_long(block, text)
    return block


def _patched(value: str, lines: Sequence[str]) -> str:
    """The text with all hunks of a patch applied, one after another."""
    hunks = list(_hunks(lines))
    if not any(line[0] in "+-" for hunk in hunks for line in hunk):
        raise RefusedEdit("The patch changes nothing: begin the lines to remove with '-' and those to add with '+'.")
    text = value.split("\n") if value else []
    for hunk in hunks:
        text = _with_hunk(text, hunk)
    return "\n".join(text)


def _hunks(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines of each hunk, with the signs at their beginnings."""
    if len(lines) > 1 and lines[0].startswith("--- ") and lines[1].startswith("+++ "):
        lines = lines[2:]
    hunk: list[str] = []
    for line in lines:
        if line.startswith("@@"):
            yield from _without_blank_ends(hunk)
            hunk = []
        elif not line.strip():
            # Models leave out the space that an empty line of context would begin with.
            hunk.append(" ")
        elif line[0] in " +-":
            hunk.append(line)
        elif not line.startswith("\\ "):  # "\ No newline at end of file"
            raise RefusedEdit(
                f"The line {line!r} is no part of a patch: a line begins with ' ' (stays), '-' (is removed), '+' (is "
                "added) or '@@' (another place)."
            )
    yield from _without_blank_ends(hunk)


def _without_blank_ends(hunk: list[str]) -> Iterator[list[str]]:
    """The hunk without empty context at its ends, where it only separates hunks. Yields nothing if no line is left."""
    marked = [place for place, line in enumerate(hunk) if line != " "]
    if marked:
        yield hunk[marked[0] : marked[-1] + 1]


def _with_hunk(text: list[str], hunk: Sequence[str]) -> list[str]:
    old = [line[1:] for line in hunk if line[0] != "+"]
    new = [line[1:] for line in hunk if line[0] != "-"]
    if not old:
        return text + new
    places = [place for place in range(len(text) - len(old) + 1) if text[place : place + len(old)] == old]
    shown = "\n".join(old)
    if not places:
        raise RefusedEdit(f"The patch was not applied: the memory block does not have exactly these lines:\n{shown}")
    if len(places) > 1:
        raise RefusedEdit(
            f"The patch was not applied: the memory block has these lines {len(places)} times. Give more of the lines "
            f"around the right place:\n{shown}"
        )
    return text[: places[0]] + new + text[places[0] + len(old) :]


# The effects of the memory tools on an agent's blocks.


def edit_memory(memory: Memory, tool_name: str, arguments: Mapping[str, Any]) -> EditedMemory:
    """Computes the result of a call of a memory tool. The arguments fit the tool's schema. Raises `RefusedEdit`."""
    return _EDITS[tool_name](memory, arguments)


def _append(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    block = memory.writable(arguments["label"])
    return written(block, f"{block.value}\n{arguments['content']}" if block.value else arguments["content"])


def _replace_all(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    block, old = memory.writable(arguments["label"]), arguments["old_content"]
    if not old:
        raise RefusedEdit("old_content is empty: give the text to replace.")
    if old not in block.value:
        raise RefusedEdit(f"Old content {old!r} not found in memory block {block.label!r}.")
    return written(block, block.value.replace(old, arguments["new_content"]))


def _replace_one(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    return _with_passage(memory.writable(arguments["label"]), arguments["old_string"], arguments["new_string"])


def _with_passage(block: Block, old: str, new: str) -> EditedMemory:
    if not old:
        raise RefusedEdit("No replacement was performed: old_string is empty. Say which passage is to be replaced.")
    times = block.value.count(old)
    if times == 0:
        raise RefusedEdit(
            f"No replacement was performed, old_string `{old}` did not appear verbatim in memory block with label "
            f"`{block.label}`."
        )
    if times > 1:
        lines = [number for number, line in enumerate(block.value.split("\n"), start=1) if old in line]
        raise RefusedEdit(
            f"No replacement was performed. Multiple occurrences of old_string `{old}` in lines {lines}. Please ensure "
            "it is unique."
        )
    return written(block, block.value.replace(old, new))


def _insert(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    block = memory.writable(arguments["label"])
    return _with_line(block, arguments["new_string"], arguments.get("insert_line", -1))


def _with_line(block: Block, text: str, after: int) -> EditedMemory:
    lines = block.value.split("\n") if block.value else []
    if not -1 <= after <= len(lines):
        raise RefusedEdit(
            f"Invalid `insert_line` parameter: {after}. It should be within the range of lines of the memory block: "
            f"[0, {len(lines)}], or -1 to append to the end of the memory block."
        )
    place = len(lines) if after == -1 else after
    return written(block, "\n".join([*lines[:place], text, *lines[place:]]))


def _rethink(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    block = memory.writable(arguments["label"])
    if memory.seen.get(block.id, block.version) != block.version:
        raise RefusedEdit(
            f"The memory block {block.label!r} was changed by another writer since you saw it, and writing it anew "
            f"would undo that. Nothing was written. It now reads:\n{block.value}"
        )
    return written(block, arguments["new_memory"])


def _manage(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    command = arguments["command"]
    if command == "rename":
        return _rename(memory, arguments)
    needed = {"create": ("description",), "str_replace": ("old_string", "new_string"), "insert": ("insert_text",)}
    for name in ("path", *needed.get(command, ())):
        if arguments.get(name) is None:
            raise RefusedEdit(f"{name} is required for the {command} command.")
    label = _label_in(arguments["path"])
    if command == "create":
        return _create(memory, label, arguments.get("file_text") or "", arguments["description"])
    block = memory.writable(label)
    if command == "str_replace":
        return _with_passage(block, arguments["old_string"], arguments["new_string"])
    if command == "insert":
        return _with_line(block, arguments["insert_text"], arguments.get("insert_line", -1))
    return EditedMemory(f"Memory block {label!r} is deleted and no longer in view.", detached=[block.id])


def _create(memory: Memory, label: str, text: str, description: str) -> EditedMemory:
    memory.refuse_label(label)
    made = memory.new_block(label, text, description)
    refuse_too_long(made, text)
    return EditedMemory(f"Memory block {label!r} is created and in view from now on.", made=[made])


def _rename(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    path, description = arguments.get("path"), arguments.get("description")
    if path and description:
        block = memory.writable(_label_in(path))
        changed = replace(block, description=description)
        return EditedMemory(f"Memory block {block.label!r} has the new description.", changed=[changed])
    old_path, new_path = arguments.get("old_path"), arguments.get("new_path")
    if not old_path or not new_path:
        raise RefusedEdit("rename needs old_path and new_path, or path and description.")
    block, label = memory.writable(_label_in(old_path)), _label_in(new_path)
    memory.refuse_label(label)
    return EditedMemory(f"Memory block {block.label!r} is called {label!r} now.", changed=[replace(block, label=label)])


def _label_in(path: str) -> str:
    return path.removeprefix("/memories").removeprefix("/").strip()


_EDITS: Mapping[str, Callable[[Memory, Mapping[str, Any]], EditedMemory]] = {
    "core_memory_append": _append,
    "core_memory_replace": _replace_all,
    "memory_insert": _insert,
    "memory_replace": _replace_one,
    "memory_apply_patch": apply_patch,
    "memory_rethink": _rethink,
    "memory": _manage,
}
