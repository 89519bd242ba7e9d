"""A tenant's source can neither run nor tie up the process that reads it."""

import builtins
import sys
import time
from pathlib import Path

import pytest

from api.tool_source.reader import read_tool_source
from shared.domain.errors import InvalidToolSource

WRITE = "__import__('pathlib').Path({path!r}).touch()"


@pytest.mark.parametrize(
    "template",
    [
        "{write}\ndef tool(a: int): ...",
        "@{write}\ndef tool(a: int): ...",
        "def tool(a: int = {write}): ...",
        "def tool(a: {write}): ...",
        'def tool(a: "{write}"): ...',
        "def tool(a: Literal[{write}]): ...",
        "def tool(a: Annotated[int, {write}]): ...",
        "def tool(a: Annotated[int, Field(ge={write}, description={write})]): ...",
        "def tool(a: int = Field(default_factory=lambda: {write})): ...",
        "Alias = {write}\ndef tool(a: Alias): ...",
        "class A(BaseModel):\n    {write}\n    x: int = {write}\ndef tool(a: A): ...",
        "class A(Enum):\n    X = {write}\ndef tool(a: A): ...",
        "class A(metaclass={write}):\n    x: int\ndef tool(a: A): ...",
        "def tool(a: f'{{{write}}}'): ...",
    ],
)
def test_nothing_is_executed(template: str, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    source = template.format(write=WRITE.format(path=str(proof)))
    try:
        read_tool_source(source)
    except InvalidToolSource as refusal:
        assert refusal.message
    assert not proof.exists()


def test_nothing_is_imported_and_no_name_is_looked_up() -> None:
    loaded = set(sys.modules)
    read_tool_source("import antigravity, this\ndef tool(a: antigravity.Thing, b: builtins.exit): ...")
    assert not {"antigravity", "this"} & (set(sys.modules) - loaded)
    assert hasattr(builtins, "exit")


DOUBLING_ALIASES = "".join(f"A{n} = tuple[A{n + 1}, A{n + 1}]\n" for n in range(30)) + "A30 = int\n"
DOUBLING_CLASSES = "".join(f"class C{n}(C{n + 1}, C{n + 2}): x{n}: int\n" for n in range(300))
DEEP_CLASSES = "".join(f"class C{n}(BaseModel):\n    x: 'C{n + 1}'\n" for n in range(100))


@pytest.mark.parametrize(
    "source",
    [
        "def tool(a: int = " + "(" * 100_000 + ")" * 100_000 + "): ...",
        "def tool(a: " + "[" * 100_000,
        "def tool(a: int = " + "-" * 60_000 + "1): ...",
        "def tool(a: int = " + "1+" * 20_000 + "1): ...",
        "def tool(a: " + "int|" * 20_000 + "int): ...",
        "def tool(a: " + "list[" * 90 + "int" + "]" * 90 + "): ...",
        "def tool(a: " + "x." * 20_000 + "y): ...",
        "def tool(a: " + "f()" + "()" * 20_000 + "): ...",
        "def tool(a: " + "not " * 20_000 + "x): ...",
        "def tool(a: int): ...\n" + "if x:\n" + " if x:\n" * 3,
        "".join(" " * n + "if x:\n" for n in range(200)),
        "def tool(): ...\n" + "x = 1\n" * 20_000,
        "def tool(a: 'list[' ): ...\n# " + "y" * 200_000,
        "def tool(a): ...\0",
        "def tool(a='\ud800'): ...",
        "def tool(a: int = " + "9" * 100_000 + "): ...",
        f"{DOUBLING_ALIASES}def tool(a: A0): ...",
        f"{DEEP_CLASSES}class C100(BaseModel): ...\ndef tool(a: C0): ...",
        "def tool(" + ", ".join(f"a{n}: int" for n in range(5_000)) + "): ...",
        "def tool(" + ", ".join(f"a{n}" for n in range(15_000)) + "): ...",
        "def tool(a: Literal[" + ",".join(map(str, range(30_000))) + "]): ...",
        "def tool(a):\n    'half \\ud800'",
        "def tool(a: int = 'nul \\0'):\n    'Does it.'",
        "def tool(a):\n    '" + "x" * 30_000 + "'",
    ],
)
def test_an_oversized_or_malformed_source_is_refused_quickly(source: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidToolSource):
        read_tool_source(source)
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    "source",
    [
        "def tool(a: int = 0x" + "f" * 100_000 + "): ...",
        "def tool(a: '" + "x" * 5_000 + "'): ...",
        "def tool(a: Literal[0x" + "f" * 10_000 + "]): ...",
        "def tool(a: Union[()], b: Literal[()], c: Annotated[()], d: tuple[()], e: Optional[()]): ...",
        "def tool(a: dict[..., ...], b: list[...], c: set[dict[str, int]]): ...",
        f"{DOUBLING_CLASSES}class D(C0, BaseModel): ...\ndef tool(a: D): ...",
        "class A(A): x: int\ndef tool(a: A): ...",
        "class A(B): x: int\nclass B(A, BaseModel): y: A\ndef tool(a: A): ...",
        "int = str\nstr = int\ndef tool(a: int): ...",
        "class A(Enum): ...\ndef tool(a: A = A.x): ...",
        "class A(BaseModel):\n    __x: int\n    model_config: int\n    f0: int\n    x, y = 1, 2\ndef tool(a: A): ...",
        "class Parameters(BaseModel):\n    x: int\ndef tool(a: Parameters): ...",
        "def tool(a: int = Field(ge='x', pattern=3, min_length=-1, examples=4, description=5)): ...",
        "def tool(a: int = Field(*x, **y)): ...",
        "def tool(a: str = Field(pattern='(a{1000}){1000}')): ...",
        "def tool(a='\\d'):\n    '\\d is an odd escape'",
        "def tool(a):\n    'Args:\\n' ",
        "def tool(a):\n    ':param'\n",
        "def tool(a):\n    'Parameters\\n----------\\n'\n",
        "def tool(a):\n    '" + "Args:\\n" * 2_000 + "'",
        "def tool(a):\n    '" + " \\n" * 6_000 + ":param a: x'",
        "def tool(a):\n    '" + "Args:\\n    a (((((: x\\n" * 500 + "'",
    ],
)
def test_an_odd_source_is_read_with_warnings_at_most(source: str) -> None:
    started = time.process_time()
    assert read_tool_source(source).name == "tool"
    assert time.process_time() - started < 30
