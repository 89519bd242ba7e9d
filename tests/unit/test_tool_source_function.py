"""Which function of a source is the tool, which of its parameters are offered, and what its docstring tells."""

import textwrap

import pytest

from api.tool_source.reader import ToolDeclaration, read_tool_source
from shared.domain.errors import InvalidToolSource


def read(source: str, name: str | None = None) -> ToolDeclaration:
    return read_tool_source(textwrap.dedent(source), name)


@pytest.mark.parametrize(
    "name", ["model_config", "_x", "schema", "copy", "json", "title", "default", "p0", "model_fields"]
)
def test_no_parameter_name_is_special(name: str) -> None:
    found = read(f"def tool({name}: int):\n    'Does it.'")
    assert found.parameters["properties"] == {name: {"type": "integer"}}
    assert found.parameters["required"] == [name]


def test_reserved_and_variable_parameters_are_not_offered() -> None:
    found = read(
        "def tool(self, agent_state: 'AgentState', a: int, *rest, client=None, agent_id=None, **more):\n    'Does it.'"
    )
    assert list(found.parameters["properties"]) == ["a"]
    assert found.warnings == ["*args and **kwargs are not offered to the model"]


def test_every_kind_of_parameter_keeps_its_default() -> None:
    found = read("def tool(a, b=1, /, c=2, *, d, e=3):\n    'Does it.'")
    assert found.parameters["required"] == ["a", "d"]
    assert [schema.get("default") for schema in found.parameters["properties"].values()] == [None, 1, 2, None, 3]


@pytest.mark.parametrize(
    "docstring",
    [
        "Does it.\n\nArgs:\n    a (int): the a\n    b: the b\n\nReturns:\n    str: it",
        "Does it.\n\nParameters\n----------\na : int\n    the a\nb\n    the b\n\nReturns\n-------\nstr\n    it",
        "Does it.\n\n:param a: the a\n:param int b: the b\n:returns: it",
    ],
)
def test_docstring_styles(docstring: str) -> None:
    found = read_tool_source(f"def tool(a: int, b: int = Field(2)):\n    {docstring!r}")
    assert found.description == "Does it."
    assert [schema["description"] for schema in found.parameters["properties"].values()] == ["the a", "the b"]


def test_a_docstrings_other_sections_stay() -> None:
    found = read('''
        def tool(a: int):
            """Does it.

            Slowly.

            Args:
                a: the a
            Note:
                Costs money.
            """
    ''')
    assert found.description == "Does it.\n\nSlowly.\n\nNote:\nCosts money."


def test_a_tool_without_docstring_gets_a_warning() -> None:
    found = read("def tool(a): ...")
    assert found.description == "The tool tool."
    assert found.warnings == [
        "the function has no docstring: the model gets only its name",
        "a has no type annotation: the model may send any value",
    ]


def test_the_last_public_function_of_the_top_level_is_the_tool() -> None:
    source = """
        import os
        def first(): "First."
        async def second():
            "Second."
            def inner(): "Inner."
        def _helper(): "Helper."
        class Other:
            def method(self): "Method."
    """
    found = read(source)
    assert found.name == "second"
    assert read(source, "first").description == "First."
    assert read("def _only(): 'Only.'").name == "_only"


def test_indented_source_is_read() -> None:
    assert read_tool_source("    @decorated\n    def tool(a: int):\n        'Does it.'\n").name == "tool"


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("", None, "The source defines no function at its top level: send the source of one function."),
        ("class A:\n    def f(self): ...", None, "The source defines no function at its top level"),
        ("def f(: ...", None, "The source is not valid Python: "),
        ("def f():\nreturn 1", None, "(line 2)."),
        ("def f(): ...", "g", "The source defines no function 'g' at its top level, only: f."),
        ("def größe(): ...", None, "use at most 64 ASCII letters"),
        (f"def {'f' * 65}(): ...", None, "use at most 64 ASCII letters"),
        ("def f(größe): ...", None, "The parameter 'größe' cannot be offered to a model"),
        ("def f(a, a): ...", None, "The function has two parameters called 'a': rename one."),
    ],
)
def test_a_refusal_names_the_problem(source: str, name: str | None, message: str) -> None:
    with pytest.raises(InvalidToolSource) as caught:
        read_tool_source(source, name)
    assert message in caught.value.message
