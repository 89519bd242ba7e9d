"""What the memory tools do to an agent's blocks."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from shared.domain.agents import Block
from shared.domain.memory import EditedMemory, Memory, RefusedEdit, refuse_too_long, written
from shared.domain.memory_patches import apply_patch


def edit_memory(memory: Memory, tool_name: str, arguments: Mapping[str, Any]) -> EditedMemory:
    """What a call of a memory tool comes to. The arguments fit the tool's schema. Raises `RefusedEdit`."""
    return _EDITS[tool_name](memory, arguments)


def _append(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    block = memory.writable(arguments["label"])
    return written(block, f"{block.value}\n{arguments['content']}" if block.value else arguments["content"])


def _replace_all(memory: Memory, arguments: Mapping[str, Any]) -> EditedMemory:
    block, old = memory.writable(arguments["label"]), arguments["old_content"]
    if not old:
        raise RefusedEdit("old_content is empty: say which text is to be replaced.")
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
            f"The memory block {block.label!r} was changed by somebody else since you saw it, and writing it anew "
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
