"""What a tool gets that was written against classes which only its client has, or against names of `typing`."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, Field

from tests.kit.sandboxes import sandbox_of
from tests.kit.tools import tool_call
from worker.tools.outcomes import ToolOutcome, ToolSandbox


class Item(BaseModel):
    name: str
    price: float = 1.5
    tags: list[str] = Field(default_factory=list)


class Parcel(BaseModel):
    item: Item
    others: dict[str, Item] = {}
    note: str | Item | None = None


class Arguments(BaseModel):
    parcel: Parcel
    more: list[Item] = []
    count: int = 1


@pytest.fixture
async def sandbox() -> AsyncIterator[ToolSandbox]:
    async with sandbox_of("process") as made:
        yield made


async def called(sandbox: ToolSandbox, source: str, **arguments: Any) -> ToolOutcome:
    call = tool_call(source, **arguments)
    return await sandbox.call(msgspec.structs.replace(call, argument_schema=Arguments.model_json_schema()))


async def test_arguments_of_the_clients_classes_came_as_dicts_or_not_at_all(sandbox: ToolSandbox) -> None:
    """The annotation alone was a NameError: the class is defined where the schema was made."""
    source = """
        def tool(parcel: Parcel, more: list[Item], count: int) -> bool:
            print(parcel.item.name, parcel.item.price, parcel.item.tags, parcel.others["a"].name, parcel.note.name)
            same = Item(**parcel.item.model_dump())
            print([one.name for one in more], isinstance(parcel, Parcel), parcel.item == same)
            return True
    """
    parcel = {"item": {"name": "cup"}, "others": {"a": {"name": "jug"}}, "note": {"name": "urn"}}

    outcome = await called(sandbox, source, parcel=parcel, more=[{"name": "pot", "price": 2}], count=3)

    assert (outcome.status, outcome.text) == ("success", "True"), outcome.stderr
    assert outcome.stdout == [f"cup {Item(name='cup').price} None jug urn", "['pot'] True True"]


async def test_objects_that_a_tool_gives_back_are_json_again(sandbox: ToolSandbox) -> None:
    source = "def tool(parcel, more):\n    return {'parcel': parcel, 'more': (*more, parcel.note)}"

    outcome = await called(sandbox, source, parcel={"item": {"name": "cup"}, "note": "fragile"}, more=[{"name": "pot"}])

    item = '{"name": "%s", "price": 1.5, "tags": null}'
    expected = '{"parcel": {"item": %s, "others": {}, "note": "fragile"}, "more": [%s, "fragile"]}'
    assert outcome.text == expected % (item % "cup", item % "pot")


async def test_a_class_that_the_source_defines_itself_is_the_sources(sandbox: ToolSandbox) -> None:
    source = """
        from dataclasses import dataclass

        @dataclass
        class Item:
            name: str

        def tool(more: list[Item]):
            return [type(one).__name__ + ":" + one.name for one in more] + [str(Item.__dataclass_fields__.keys())]
    """

    outcome = await called(sandbox, source, more=[{"name": "pot"}])

    assert outcome.text == """["Item:pot", "dict_keys(['name'])"]"""


async def test_names_of_typing_were_unknown_without_their_import(sandbox: ToolSandbox) -> None:
    """Clients send a function's source alone, and its module's imports stay behind."""
    source = """
        def tool(numbers: List[int], label: Optional[str] = None) -> Dict[str, Any]:
            total: Union[int, float] = cast(int, sum(numbers))
            return {label or "sum": total}
    """

    outcome = await sandbox.call(tool_call(source, numbers=[1, 2]))

    assert (outcome.status, outcome.text) == ("success", '{"sum": 3}'), outcome.stderr
