"""Objects that a tool gets in place of JSON: the agent's state, and arguments whose class its schema defines.

The watcher and the zygote load it by path, into an interpreter that has only the standard library.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes milliseconds to load
if TYPE_CHECKING:
    from typing import Any


class ReadOnly:
    """A part of the agent's state: its fields as attributes."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update({name: read_only(value) for name, value in fields.items()})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"agent_state is a copy, so setting {name} would change nothing: use the memory tools")

    def __repr__(self) -> str:
        return f"ReadOnly({self.__dict__!r})"

    def get_block(self, label: str) -> Any:
        """Returns the block of the agent's memory with this label."""
        return {block.label: block for block in self.__dict__["blocks"]}[label]

    def list_block_labels(self) -> list[str]:
        """Returns the labels of the agent's memory blocks."""
        return [block.label for block in self.__dict__["blocks"]]


def read_only(value: Any) -> Any:
    items: Any = value
    if isinstance(value, dict):
        return ReadOnly(items)
    return [read_only(item) for item in items] if isinstance(value, list) else value


class Described:
    """An object of a class that a tool's schema defines, with its fields as attributes.

    A client derives such a schema from a Pydantic model, which is never sent. `model_dump` exists because tools call it
    on such models.
    """

    def __init__(self, /, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def model_dump(self) -> dict[str, Any]:
        """Returns the fields as a dict, recursively."""
        return {name: undescribed(value) for name, value in self.__dict__.items()}


def undescribed(value: Any) -> Any:
    """Replaces every described object with a dict, also in lists and dicts."""
    items: Any = value
    if isinstance(value, Described):
        return value.model_dump()
    if isinstance(value, dict):
        return {key: undescribed(item) for key, item in items.items()}
    return [undescribed(item) for item in items] if isinstance(value, list) else value


def for_json(value: object) -> Any:
    """Converts a value that JSON cannot express: a described object to its fields, any other to its `repr`."""
    return value.model_dump() if isinstance(value, Described) else repr(value)


class ArgumentSchema:
    """A client's schema of a tool's arguments, and a class for each object that it defines."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._definitions: dict[str, Any] = schema.get("$defs") or {}
        objects = [name for name, one in self._definitions.items() if one.get("properties")]
        self.classes = {name: type(name, (Described,), {"__module__": "tool"}) for name in objects}

    def objects(self, arguments: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
        """Converts arguments to objects, of those classes that the tool's source has not replaced in `known`."""
        classes = {name: one for name, one in self.classes.items() if known.get(name) is one}
        properties: dict[str, Any] = self._schema.get("properties") or {}
        return {name: self._made(value, properties.get(name), classes) for name, value in arguments.items()}

    def _made(self, value: Any, schema: Any, classes: dict[str, Any]) -> Any:
        name, schema = self._resolved(schema)
        items: Any = value
        for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
            if self._is_for(value, choice):
                return self._made(value, choice, classes)
        if isinstance(value, list):
            return [self._made(item, schema.get("items"), classes) for item in items]
        if not isinstance(value, dict):
            return value
        properties: dict[str, Any] = schema.get("properties") or {}
        others = schema.get("additionalProperties")
        fields = {key: self._made(item, properties.get(key, others), classes) for key, item in items.items()}
        if name not in classes:
            return fields
        whole = {key: fields.get(key, one.get("default")) for key, one in properties.items()}
        return classes[name](**(whole | fields))

    def _resolved(self, schema: Any) -> tuple[str, dict[str, Any]]:
        """Follows a `$ref`. Returns the schema, and its name if it is a definition."""
        given: Any = schema
        if not isinstance(schema, dict):
            return "", {}
        name = str(given.get("$ref", "")).rpartition("/")[2]
        return (name, self._definitions[name]) if name in self._definitions else ("", given)

    def _is_for(self, value: Any, schema: Any) -> bool:
        _, meant = self._resolved(schema)
        if isinstance(value, list):
            return meant.get("type") == "array"
        if isinstance(value, dict):
            return meant.get("type") == "object" and set(meant.get("required") or ()) <= value.keys()
        return False
