"""What a model is told of a tool in TypeScript."""

from typing import Any

import pytest

from api.tool_source.typescript import read_typescript_source
from shared.domain.errors import InvalidToolSource


def parameter(annotation: str, before: str = "") -> tuple[dict[str, Any], list[str]]:
    """The schema of a parameter of this type, and the warnings."""
    source = f"{before}\n/** Does it. */\nexport function tool(a: {annotation}): void {{}}"
    read = read_typescript_source(source)
    return read.parameters["properties"]["a"], read.warnings


def test_the_comment_before_the_function_is_the_description() -> None:
    read = read_typescript_source("""
        /** Not this one. */
        function helper() {}
        /**
         * Tell the weather.
         *
         * For any city.
         * @param city where it
         *   is asked for
         * @param {number} [days=1] - for how long
         * @returns what it is like
         */
        export async function weather(city: string, days = 1, unit?: "C" | "F"): Promise<string> { return ""; }
    """)
    assert (read.name, read.description) == ("weather", "Tell the weather.\n\nFor any city.")
    assert read.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where it is asked for"},
            "days": {"type": "number", "default": 1, "description": "for how long"},
            "unit": {"type": "string", "enum": ["C", "F"]},
        },
        "required": ["city"],
    }
    assert read.warnings == []


def test_a_probe_is_not_the_tool() -> None:
    """The last exported function was, whatever its name."""
    pay = "/** Pay. */ export function pay(amount: number) { return amount; }"
    for probe in (
        "export function _probe_pay(amount: number) { return null; }",
        "export const _probe_pay = async () => null;",
    ):
        assert read_typescript_source(f"{pay}\n{probe}").name == "pay"
    with pytest.raises(InvalidToolSource, match="take each by its name"):
        read_typescript_source(f"{pay}\nfunction _probe_pay({{ amount }}) {{ return null; }}")


def test_the_tags_of_a_comment_of_one_line_stayed_in_the_description() -> None:
    read = read_typescript_source("""
        /** Mail somebody@example.org the weather. @param city where it is @return what was sent */
        export function mail(city: string): string { return ""; }
    """)
    assert read.description == "Mail somebody@example.org the weather."
    assert read.parameters["properties"] == {"city": {"type": "string", "description": "where it is"}}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        ("string", {"type": "string"}),
        ("unknown", {}),
        ("string[]", {"type": "array", "items": {"type": "string"}}),
        ("readonly Array<boolean>[]", {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}),
        ("string | null", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ("number | undefined", {"type": "number"}),
        ("1 | 'b' | true", {"enum": [1, "b", True]}),
        ("(string | number)", {"anyOf": [{"type": "string"}, {"type": "number"}]}),
        ("Record<string, number>", {"type": "object", "additionalProperties": {"type": "number"}}),
        ("{ [key: string]: string }", {"type": "object", "additionalProperties": {"type": "string"}}),
        (
            "{ a: string; 'b-c'?: number }",
            {"type": "object", "properties": {"a": {"type": "string"}, "b-c": {"type": "number"}}, "required": ["a"]},
        ),
        ("Partial<{ a: string }>", {"type": "object", "properties": {"a": {"type": "string"}}, "required": []}),
        ("`a${string}`", {"type": "string"}),
    ],
)
def test_types_become_a_schema(annotation: str, schema: dict[str, Any]) -> None:
    assert parameter(annotation) == (schema, [])


def test_types_of_the_source_are_known_and_their_fields_inherited() -> None:
    before = "interface A { id: string }\nexport interface B extends A { unit: Unit }\ntype Unit = 'C' | 'F'"
    schema, warnings = parameter("B", before)
    assert schema == {
        "type": "object",
        "properties": {"id": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
        "required": ["id", "unit"],
    }
    assert warnings == []


@pytest.mark.parametrize(
    ("annotation", "before", "said"),
    [
        ("Date", "", "'Date' is not defined in the source"),
        ("Map<string, string>", "", "is not known"),
        ("T[]", "type T = T[]", "'T' is part of itself"),
        ("Box<string>", "interface Box<T> { a: T }", "is not known"),
        ("keyof string", "", "is not known"),
        ("[" * 60 + "]" * 60, "", "is not known"),
        ("string" + "[]" * 60, "", "is nested too deeply"),
    ],
)
def test_a_type_that_no_schema_can_say_lets_the_model_send_anything(annotation: str, before: str, said: str) -> None:
    _, warnings = parameter(annotation, before)
    assert any(said in warning and "anything" in warning for warning in warnings), warnings


def test_types_that_double_again_and_again_are_refused() -> None:
    """Twenty lines made a schema of a million parts."""
    lines = [f"interface T{n} {{ a: T{n + 1}; b: T{n + 1} }}" for n in range(20)]
    with pytest.raises(InvalidToolSource, match="more than 2000 types"):
        parameter("T0", "\n".join([*lines, "type T20 = string"]))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("const a = 1", "no function at its top level"),
        ("export function f({ a }: { a: string }) {}", "take each by its name, not in a pattern"),
        ("import _ from 'lodash'; export function f() {}", "imports lodash, which is not there"),
        ("import x from './x'; export function f() {}", "imports ./x, which is not there"),
        ("export const f = a => 1", "put the parameter in parentheses"),
        (f"export function {'g' * 70}() {{}}", "cannot be offered to a model"),
        ("enum A {} export function f() {}", "enums make code"),
        (f"export function f({', '.join(f'a{n}: string' for n in range(300))}) {{}}", "256 are allowed"),
        ("/** \0 */\nexport function f() {}", "cannot be read"),
        ("export function f( {", "cannot be read as TypeScript"),
    ],
)
def test_a_source_that_cannot_be_a_tool_is_refused_with_the_fix(source: str, said: str) -> None:
    with pytest.raises(InvalidToolSource) as refused:
        read_typescript_source(source)
    assert said in str(refused.value)


def test_the_last_exported_function_is_the_tool_unless_another_is_named() -> None:
    source = "export function a() {}\nexport const b = () => 1\nfunction c() {}"
    assert read_typescript_source(source).name == "b"
    assert read_typescript_source(source, "a").name == "a"
    assert read_typescript_source("function _a() {}\nfunction b() {}\nfunction _c() {}").name == "b"
