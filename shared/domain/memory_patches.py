"""The patches of `memory_apply_patch`: edits of memory blocks in the form of a unified diff, without line numbers.

A patch without headers is for one block. With headers it is for several, of which all are changed or none:

    *** Update Block: human
    @@
     Name: Ada.
    -Lives in Ulm.
    +Lives in Bonn.
    *** Move to: user
    *** Add Block: notes
    Description: What to remember.
    +Nothing yet.
    *** Delete Block: drafts

What a line says has to be there: a line that is no part of a patch is refused, because passing it over would make
another patch of it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.domain.agents import Block
from shared.domain.memory import EditedMemory, Memory, RefusedEdit, refuse_too_long, written

_HEADER = re.compile(r"\*\*\* (Add Block|Delete Block|Update Block|Move to):(.*)")
_FRAMES = frozenset({"*** Begin Patch", "*** End Patch", "*** End of File"})
_DESCRIPTION = "Description:"


def apply_patch(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    """What a call of `memory_apply_patch` comes to. Raises `RefusedEdit`."""
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
    """A header of a patch and the lines behind it."""

    verb: str
    label: str
    """Of the block as it is called when this section's turn comes."""
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
    """The memory when a section of the patch was applied."""
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
    return _with(memory, replace(block, value=_patched_within_limit(block, section.lines)))


def _with(memory: Memory, block: Block) -> Memory:
    """The memory with a new block, or with a block as it is now."""
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


def _patched_within_limit(block: Block, lines: Sequence[str]) -> str:
    value = _patched(block.value, lines)
    refuse_too_long(block, value)
    return value


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
    """The hunk without empty context at its ends, where it only separates; nothing when nothing is left."""
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
