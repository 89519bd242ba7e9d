"""The model runs code of its own in the tools' sandbox, and gets what it printed and its value."""

import json
from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.node import need_node
from tests.kit.product import Product

pytestmark = pytest.mark.shared_product

ADD = '''
def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: one
        b: other
    """
    return a + b
'''


async def made_agent(product: Product, **fields: Any) -> str:
    tools = ["run_code", "run_code_with_tools", *fields.pop("tools", ())]
    agent = await product.client.agents.create(
        model="openai/gpt-4o-mini", tools=tools, include_base_tools=False, **fields
    )
    return agent.id


async def answered(product: Product, agent_id: str, name: str, **arguments: str) -> dict[str, Any]:
    """The return of a call, as the wire has it; `answer` is its JSON."""
    product.models.play(Turn(calls=[Call(name, arguments)]), Turn(text="Done."))
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Go."})
    [returned] = [one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]
    return returned | {"answer": json.loads(returned["tool_return"])}


@pytest.mark.parametrize(
    ("language", "code", "results", "printed"),
    [
        ("python", "print('said')\nx = 20\nx + 1", ["21"], ["said"]),
        ("python", "import asyncio\nawait asyncio.sleep(0, 'late')", ["'late'"], []),
        ("python", "x = 1", [], []),
        ("js", "import os from 'os'; console.log(typeof os.EOL); [1, { a: 2 }]", ["[ 1, { a: 2 } ]"], ["string"]),
        ("ts", "const n: number = await Promise.resolve(4);\nn as any", ["4"], []),
    ],
)
async def test_code_is_run_and_its_value_and_output_come_back(
    product: Product, language: str, code: str, results: list[str], printed: list[str]
) -> None:
    if language != "python":
        need_node()
    agent_id = await made_agent(product)
    returned = await answered(product, agent_id, "run_code", code=code, language=language)
    assert returned["status"] == "success"
    assert returned["answer"] == {"results": results, "logs": {"stdout": printed, "stderr": []}}


@pytest.mark.parametrize(
    ("language", "code", "name", "value"),
    [
        ("python", "def f():\n    return 1 / 0\nf()", "ZeroDivisionError", "division by zero"),
        ("python", "x = = 1", "SyntaxError", "invalid syntax"),
        ("python", "import sys\nsys.exit(3)", "SystemExit", "3"),
        ("python", "import os\nos._exit(3)", "Error", "ended with status 3"),
        ("python", "open('/etc/passwd').read()", "", "/etc/passwd"),
        ("r", "1 + 1", "Error", "python, js and ts, not in r"),
    ],
)
async def test_code_that_fails_is_an_error_that_the_model_can_read(
    product: Product, language: str, code: str, name: str, value: str
) -> None:
    returned = await answered(product, await made_agent(product), "run_code", code=code, language=language)
    assert returned["status"] == "error"
    assert name in returned["answer"]["error"]["name"]
    assert value in returned["answer"]["error"]["value"]


async def test_javascript_that_fails_is_an_error_with_its_line(product: Product) -> None:
    need_node()
    agent_id = await made_agent(product)
    returned = await answered(product, agent_id, "run_code", code="console.log(1)\nmissing()", language="js")
    error = returned["answer"]["error"]
    assert (error["name"], error["value"]) == ("ReferenceError", "missing is not defined")
    assert "tool.ts:2" in error["traceback"]
    assert returned["answer"]["logs"]["stdout"] == ["1"]


async def test_code_gets_the_agents_secrets_and_gives_none_away_by_accident(product: Product) -> None:
    agent_id = await made_agent(product, secrets={"TOKEN": "very-secret-token"})
    code = "import os\nprint(os.environ['TOKEN'])\nos.environ['TOKEN']"
    returned = await answered(product, agent_id, "run_code", code=code, language="python")
    assert "very-secret-token" not in json.dumps(returned)
    assert returned["answer"]["results"] == ["'[secret TOKEN]'"]


async def test_long_output_is_cut_and_stays_json(product: Product) -> None:
    code = "print('x' * 200_000)\n'y' * 200_000"
    returned = await answered(product, await made_agent(product), "run_code", code=code, language="python")
    assert "more characters left out" in returned["answer"]["results"][0]
    assert "more characters left out" in returned["answer"]["logs"]["stdout"][0]
    assert len(returned["tool_return"]) < 50_000


async def test_code_with_tools_calls_the_agents_own_functions(product: Product) -> None:
    await product.tool(ADD)
    agent_id = await made_agent(product, tools=["add"])
    returned = await answered(product, agent_id, "run_code_with_tools", code="sum(add(n, 1) for n in range(4))")
    assert returned["answer"]["results"] == ["10"]


async def test_code_cannot_call_a_tool_that_a_person_decides_about(product: Product) -> None:
    """Else a model would go past the approval by writing a program."""
    await product.tool(ADD, default_requires_approval=True)
    agent_id = await made_agent(product, tools=["add"])
    returned = await answered(product, agent_id, "run_code_with_tools", code="add(1, 2)")
    assert "a person or a rule has a say" in returned["answer"]["error"]["value"]
