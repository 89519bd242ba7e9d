"""What agents of own code may journal, and what counts as the same call."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from holdfast.agents import adapters
from holdfast.agents.adapters import Adapter, Body, body_for
from holdfast.agents.frames import LONGEST_FRAME, packed, read_frame
from holdfast.agents.registry import register
from holdfast.agents.run import Run
from holdfast.agents.values import LARGEST_VALUE, content_hash, plain, restored, shown_arguments


@dataclass
class Point:
    x: int


class Page(BaseModel):
    title: str


def send(to: str, text: str = "") -> None:
    """A tool."""


def test_a_value_is_what_json_makes_of_it() -> None:
    assert plain({"a": (1, 2), "point": Point(1), "page": Page(title="t")}) == {
        "a": [1, 2], "point": {"x": 1}, "page": {"title": "t"},
    }  # fmt: skip
    with pytest.raises(TypeError, match="set"):
        plain({1})
    with pytest.raises(ValueError, match=str(LARGEST_VALUE)):
        plain("a" * LARGEST_VALUE)


async def _yields() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1}, "a set is nothing that JSON can say: use texts, numbers, lists"),
        (b"", "a bytes is nothing that JSON can say: use texts, numbers, lists"),
        ((one for one in "ab"), "a generator is nothing that JSON can say: let the function return a list"),
        (_yields(), "a async_generator is nothing that JSON can say: let the function return a list"),
    ],
)
def test_a_result_that_is_no_json_got_the_advice_for_an_argument(value: Any, said: str) -> None:
    for made in (value, {"inside": [value]}):
        with pytest.raises(TypeError, match=said) as refused:
            plain(made)
        assert "functools.partial" not in str(refused.value)
        with pytest.raises(TypeError, match=f"{said}.*or give it to the function by functools.partial"):
            content_hash(made)


@pytest.mark.parametrize("kind", [Page, Point, int])
def test_a_class_as_a_result_failed_with_an_error_about_self(kind: type) -> None:
    with pytest.raises(TypeError, match=f"the class {kind.__name__} is nothing that JSON can say: use texts, numbers"):
        plain(kind)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_a_number_that_is_none_was_refused_without_a_remedy(number: str) -> None:
    with pytest.raises(ValueError, match=r"the data 'x' is no JSON: Out of range.*; use None or a text for NaN"):
        plain({"loss": float(number)}, "the data 'x'")


@pytest.mark.parametrize("character", ["a", "\u00e9", "\u65e5", "\N{OTTER}"])
def test_text_that_is_not_english_was_too_large_at_a_sixth_of_the_limit(character: str) -> None:
    most = (LARGEST_VALUE - 2) // len(character.encode())
    assert plain(character * most) == character * most
    with pytest.raises(ValueError, match=f"has {(most + 1) * len(character.encode()) + 2} bytes, {LARGEST_VALUE} are"):
        plain(character * (most + 1))


def test_half_a_character_in_a_value_is_a_question_mark_the_first_time_as_well() -> None:
    assert plain({"a\udcff": ["\ud83d", "\ud83d\ude00", "\N{OTTER}", "\\ud83d", "\0"]}) == {
        "a?": ["?", "\N{GRINNING FACE}", "\N{OTTER}", "\\ud83d", "\0"]
    }  # fmt: skip


async def test_a_thread_with_a_long_history_crashed_every_process() -> None:
    hello = {"t": "hello", "history": ["x" * LONGEST_FRAME]}
    data = json.dumps(hello).encode()
    reader = asyncio.StreamReader()
    reader.feed_data(len(data).to_bytes(4, "big") + data)
    assert await read_frame(reader) == hello


def test_code_that_gave_too_much_to_its_run_was_taken_for_a_crash() -> None:
    assert len(packed({"t": "text", "text": "x" * 1000})) > 1000
    with pytest.raises(ValueError, match=f"at once has .* bytes, {LONGEST_FRAME} are allowed"):
        packed({"t": "text", "text": "x" * LONGEST_FRAME})


def test_text_that_is_not_english_was_too_much_for_a_frame_at_half_of_the_limit() -> None:
    assert len(packed({"t": "text", "text": "\u65e5" * (LONGEST_FRAME // 6)})) < LONGEST_FRAME
    assert packed({"text": "a\ud83d"})[4:] == b'{"text":"a?"}'


def test_a_value_comes_back_as_the_wanted_type() -> None:
    assert restored({"x": 1}, Point) == Point(1)
    assert restored({"title": "t"}, Page) == Page(title="t")
    assert restored({"x": 1}, None) == {"x": 1}


class Aliased(BaseModel):
    title: str = Field(default="none", alias="pageTitle")


@dataclass
class Measured:
    text: str
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.text)


def test_a_model_with_aliases_lost_its_fields_on_the_way_through_the_journal() -> None:
    page = Aliased(pageTitle="otters")
    assert restored(plain(page), Aliased) == page
    assert restored({"pageTitle": "otters"}, Aliased) == page


@pydantic_dataclass
class AliasedDataclass:
    title: str = Field(alias="pageTitle")


def test_a_dataclass_of_pydantic_with_aliases_did_not_come_back() -> None:
    page = AliasedDataclass(pageTitle="otters")
    assert restored(plain(page), AliasedDataclass) == page


def test_a_list_of_objects_came_back_as_a_list_of_dictionaries() -> None:
    assert restored([{"title": "t"}], list[Page]) == [Page(title="t")]
    assert restored([{"x": 1}], list[Point]) == [Point(1)]
    assert restored((1, None), list[int | None]) == [1, None]
    assert restored([{"x": 1}], list[Any]) == [{"x": 1}]


@dataclass(frozen=True)
class Spot:
    name: str


@dataclass
class Trip:
    stops: dict[str, list[Point]]
    page: Page | None
    ends: tuple[Point, Spot]
    parts: tuple[Spot, ...] = ()
    note: "str | int" = ""
    length: float = 0
    first: Optional[Point] = None  # noqa: UP045 - as older programs write it
    rest: Any = None


TRIP = Trip({"a": [Point(1)]}, Page(title="t"), (Point(2), Spot("b")), (Spot("c"),), 3, 1, Point(4), {"x": 1})


@pytest.mark.parametrize(
    ("made", "returns"),
    [
        (TRIP, Trip),
        (Trip({}, None, (Point(2), Spot("b"))), Trip),
        ([TRIP], list[Trip]),
        ({"a": Page(title="t")}, dict[str, Page]),
        ({1: Point(1)}, dict[int, Point]),
        ({"a": {"b": [Point(1)]}}, Mapping[str, dict[str, Sequence[Point]]]),
        ((Point(1), Point(2)), tuple[Point, ...]),
        ((Point(1), "a", [Page(title="t")]), tuple[Point, str, list[Page]]),
        ((), tuple[Point, ...]),
        (Page(title="t"), Page | None),
        (None, Page | None),
        (Point(1), Optional[Point]),  # noqa: UP045 - as older programs write it
        ([Point(1), Page(title="t"), None, 1, "a", [Point(1)]], list[Point | Page | int | str | list[Point] | None]),
        ([Point(1), None], list[Annotated[Point | None, "noted"]]),
        ({"a": [1]}, dict[str, list[int]]),
        ([1.5, "a"], list[int]),
        ("a", Literal["a", "b"]),
    ],
)
def test_containers_of_objects_came_back_as_dictionaries(made: Any, returns: Any) -> None:
    came = restored(plain(made), returns)
    assert came == made
    assert type(came) is type(made)


def test_a_set_is_made_of_a_list() -> None:
    assert restored([{"name": "a"}, {"name": "a"}], set[Spot]) == {Spot("a")}
    assert restored(["a", "b", "a"], frozenset[str]) == frozenset("ab")


class Color(Enum):
    RED = "red"


@dataclass
class Painted:
    color: Color | None
    weight: float | None = None


Unreadable = make_dataclass("Unreadable", [("point", Point), ("unknown", "Missing | None", None)])


def test_a_value_of_a_type_that_json_lacks_stays_as_json_has_it() -> None:
    assert restored({"color": "red", "weight": 1}, Painted | None).color == Color.RED.value
    assert restored([1, "red"], list[float | Color]) == [1, "red"]
    assert restored({"point": {"x": 1}}, Unreadable).point == {"x": 1}


def test_a_value_of_none_of_the_wanted_types_is_refused() -> None:
    for value in ({"y": 1}, 1, [1]):
        with pytest.raises(TypeError, match="is none of"):
            restored(value, Point | Page | None)


def test_a_dataclass_with_a_field_that_it_computes_did_not_come_back() -> None:
    assert restored(plain(Measured("otters")), Measured) == Measured("otters")


def test_callables_count_by_their_names() -> None:
    assert content_hash((send, 1)) == content_hash((send, 1)) != content_hash((plain, 1))
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert content_hash(partial(send, "x"))


def test_a_call_whose_argument_had_keys_of_several_types_was_refused_with_an_error_about_sorting() -> None:
    assert content_hash({1: "a", "b": 2}) == content_hash({"b": 2, 1: "a"}) != content_hash({1: "a", "b": 3})
    with pytest.raises(TypeError, match="a set is nothing that JSON can say"):
        content_hash({1: "a", "b": {1}})


def test_arguments_have_the_names_of_parameters() -> None:
    assert shown_arguments(send, ("ada",), {"text": "hi"}) == {"to": "ada", "text": "hi"}
    assert shown_arguments(len, ("ada",), {}) in ({"obj": "ada"}, {"args": ["ada"]})


async def body(run: Run) -> str:
    """Does nothing.

    And says it.
    """
    return ""


@pytest.mark.parametrize(
    ("name", "agent", "said"),
    [("a b", body, "no name"), ("number", 5, "the agent 'number' is a int: give an async function")],
)
def test_what_is_no_agent_is_refused(name: str, agent: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        register(name, agent)


class _Framework:
    """Stands for a framework's agent, and for its adapter."""

    def body_of(self, agent: Any, name: str) -> Body:
        async def one_body(run: Any) -> str:
            return f"{name} {run}"

        return one_body

    async def run_agent(self, run: Any, agent: Any) -> str:
        return f"made for {run}"


def _of_nobody() -> _Framework:
    return _Framework()


def _of_a_run(_run: Run) -> _Framework:
    return _Framework()


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(_adapter: Adapter) -> _Framework:
        return _Framework()

    monkeypatch.setattr(adapters, "ADAPTERS", (Adapter("some", f"{__name__}.", __name__, can_share=True),))
    monkeypatch.setattr(Adapter, "load", loaded)


@pytest.mark.usefixtures("framework")
@pytest.mark.parametrize(
    ("agent", "said"),
    [(_Framework(), "support a run"), (_of_nobody, "made for a run"), (_of_a_run, "made for a run")],
)
async def test_an_agent_of_a_framework_becomes_a_body(agent: Any, said: str) -> None:
    run: Any = "a run"
    made, name = body_for("support", agent)
    assert name == "some"
    assert await made(run) == said


@pytest.mark.usefixtures("framework")
async def test_a_factory_that_makes_no_agent_is_named() -> None:
    run: Any = "a run"
    made, _ = body_for("support", lambda: 5)
    with pytest.raises(TypeError, match="has to return an agent of a framework; it has returned a int"):
        await made(run)
