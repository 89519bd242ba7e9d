"""A tool's source text becomes what a model is told: name, description, parameters."""

import json
import textwrap
from typing import Any

import pytest

from api.tool_source.reader import ToolDeclaration, read_tool_source


def read(source: str, name: str | None = None) -> ToolDeclaration:
    return read_tool_source(textwrap.dedent(source), name)


def parameter(annotation: str, before: str = "", default: str = "") -> Any:
    """The schema of one parameter with this annotation, and the warnings."""
    found = read_tool_source(
        f"{textwrap.dedent(before)}\ndef tool(value: {annotation}{default}):\n    '''Does it.'''\n"
    )
    return found.parameters["properties"]["value"], found.warnings


def test_a_simple_tool_is_exactly_what_the_wire_shows() -> None:
    found = read('''
        def roll_dice_tool(num_sides: int) -> str:
            """
            Returns a number.
            Args:
                num_sides (int): sides
            Returns:
                str: number
            """
            return str(num_sides)
    ''')
    assert (found.name, found.description) == ("roll_dice_tool", "Returns a number.")
    assert json.dumps(found.parameters) == json.dumps(
        {
            "type": "object",
            "properties": {"num_sides": {"type": "integer", "description": "sides"}},
            "required": ["num_sides"],
        }
    )
    assert found.warnings == []


def test_a_tool_without_parameters() -> None:
    assert read("def tool():\n    'Does it.'").parameters == {"type": "object", "properties": {}, "required": []}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        ("str", {"type": "string"}),
        ("float", {"type": "number"}),
        ("bool", {"type": "boolean"}),
        ("list[str]", {"type": "array", "items": {"type": "string"}}),
        ("typing.List[int]", {"type": "array", "items": {"type": "integer"}}),
        ("dict", {"type": "object"}),
        ("Dict[str, int]", {"type": "object", "additionalProperties": {"type": "integer"}}),
        ("int | None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ("Optional[int]", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ("Union[int, str]", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ("'int | str'", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ("'list[\"int\"]'", {"type": "array", "items": {"type": "integer"}}),
        ("Literal['a', 'b']", {"type": "string", "enum": ["a", "b"]}),
        ("Annotated[int, 'how many']", {"type": "integer", "description": "how many"}),
        (
            "Annotated[int, Field(ge=1, description='how many')]",
            {"type": "integer", "minimum": 1, "description": "how many"},
        ),
        (
            "list[Annotated[str, Field(min_length=1)]]",
            {"type": "array", "items": {"type": "string", "minLength": 1}},
        ),
        ("datetime.datetime", {"type": "string", "format": "date-time"}),
        ("tuple[int, ...]", {"type": "array", "items": {"type": "integer"}}),
        ("Any", {}),
    ],
)
def test_annotations(annotation: str, schema: dict[str, Any]) -> None:
    assert parameter(annotation) == (schema, [])


@pytest.mark.parametrize(
    "annotation",
    ["pandas.DataFrame", "Callable[[int], str]", "lambda: 1", "f(1)", "'not a type!'", "list[int, str]", "3"],
)
def test_an_unknown_type_is_any_value_with_a_warning(annotation: str) -> None:
    schema, warnings = parameter(annotation)
    assert schema == {}
    assert len(warnings) == 1
    assert warnings[0].endswith("the model may send any value")


@pytest.mark.parametrize(
    ("default", "schema"),
    [
        (" = 6", {"type": "integer", "default": 6}),
        (" = -1", {"type": "integer", "default": -1}),
        (" = LIMIT", {"type": "integer", "default": 10}),
        (" = None", {"type": "integer"}),
        (" = compute()", {"type": "integer"}),
        (" = b'x'", {"type": "integer"}),
        (" = 1e999", {"type": "integer"}),
        (
            " = Field(3, le=9, description='how many')",
            {"type": "integer", "default": 3, "maximum": 9, "description": "how many"},
        ),
        (" = Field(default_factory=int)", {"type": "integer"}),
    ],
)
def test_a_parameter_with_a_default_is_optional(default: str, schema: dict[str, Any]) -> None:
    found = read(f"LIMIT = 10\ndef tool(value: int{default}):\n    'Does it.'")
    assert found.parameters == {"type": "object", "properties": {"value": schema}, "required": []}


def test_field_without_a_default_is_required() -> None:
    found = read("def tool(a: int = Field(..., description='x'), b: int = Field(gt=0)):\n    'Does it.'")
    assert found.parameters["required"] == ["a", "b"]


def test_constraints_that_do_not_fit_are_left_out() -> None:
    assert parameter("int", default=" = Field(pattern='[a-z')")[0] == {"type": "integer"}
    schema, warnings = parameter("str", default=" = Field(pattern='(?=lookahead)')")
    assert schema == {"type": "string"}
    assert warnings == ["the constraints of value do not fit its type: the model does not see them"]


def test_classes_of_the_source() -> None:
    schema, warnings = parameter(
        "Order",
        before='''
            from pydantic import BaseModel, Field
            class Base(BaseModel):
                schema: int
            class Colour(StrEnum):
                RED = auto()
                BLUE = "navy"
            @dataclass(frozen=True)
            class Point:
                x: float
                tags: list[str] = field(default_factory=list)
            class Options(TypedDict, total=False):
                fast: bool
            class Order(Base):
                """An order."""
                model_config = {}
                count: ClassVar[int] = 0
                colour: Colour = Field(description="which one")
                points: list[Point]
                options: NotRequired[Options]
                note: str = "none"
        ''',
    )
    assert warnings == []
    assert schema == {"$ref": "#/$defs/Order"}
    definitions = read(
        "class Colour(Enum):\n    RED = 'red'\n@dataclass\nclass Point:\n    x: float\n    model_config: int = 3\n"
        "def tool(point: Point, colour: Colour):\n    'Does it.'"
    )
    assert definitions.parameters == {
        "type": "object",
        "properties": {"point": {"$ref": "#/$defs/Point"}, "colour": {"type": "string", "const": "red"}},
        "required": ["point", "colour"],
        "$defs": {
            "Point": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "model_config": {"type": "integer", "default": 3}},
                "required": ["x"],
            }
        },
    }


def test_inheritance_total_and_descriptions_of_class_fields() -> None:
    found = read('''
        class Base(BaseModel):
            schema: int
        class Colour(StrEnum):
            RED = auto()
            BLUE = "navy"
        class Options(TypedDict, total=False):
            fast: bool
        class Order(Base):
            """An order."""
            colour: Colour = Field(description="which one", alias="color")
            options: NotRequired[Options]
            next: "Order"
        def tool(order: Order):
            """Does it."""
    ''')
    assert found.parameters["$defs"] == {
        "Options": {"type": "object", "properties": {"fast": {"type": "boolean"}}},
        "Order": {
            "type": "object",
            "description": "An order.",
            "properties": {
                "schema": {"type": "integer"},
                "color": {"type": "string", "enum": ["red", "navy"], "description": "which one"},
                "options": {"$ref": "#/$defs/Options"},
                "next": {"type": "object"},
            },
            "required": ["schema", "color", "next"],
        },
    }
    assert found.warnings == ["the class Order contains itself: the inner one may be any object"]


def test_type_aliases_and_new_types() -> None:
    before = "Id = NewType('Id', str)\nIds: TypeAlias = list[Id]\nLoop = list['Loop']"
    assert parameter("Ids", before)[0] == {"type": "array", "items": {"type": "string"}}
    assert parameter("Loop", before)[0] == {"type": "array", "items": {}}
