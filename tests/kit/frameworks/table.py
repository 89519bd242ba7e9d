"""The frameworks of which tests run agents, and the plain function, which is no agent of any."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).parents[2] / "frameworks"
"""Has `NAME-newest.txt` and `NAME-oldest.txt`: all packages of an environment, each with its version."""


@dataclass(frozen=True)
class Framework:
    """One framework, as its adapter and its program are named."""

    name: str
    """Of the adapter `holdfast/agents/NAME.py` and of the program `tests/kit/frameworks/NAME_program.py`."""
    asks_expert: Mapping[str, Any] = field(default_factory=lambda: {"input": "otters"})
    """The arguments with which a model calls the tool `ask_expert`."""
    says_of_error: str = "there is no page"
    """The framework's text for the model when `tools.fail` fails."""
    lacks: frozenset[str] = frozenset()
    """Names of scenarios (`test_scenarios.py`) that the framework or its adapter cannot have."""

    @property
    def program(self) -> str:
        return f"tests.kit.frameworks.{self.name}_program"

    @property
    def keyless_program(self) -> str:
        """Registers `keyless` alone, which asks the worker's models, and has the tool `look`."""
        return f"tests.kit.frameworks.{self.name}_keyless_program"

    def requirements(self, version: str) -> Path:
        """The packages of the `newest` or `oldest` version that the adapter supports."""
        return REQUIREMENTS / f"{self.name.replace('_', '-')}-{version}.txt"


FRAMEWORKS = {
    one.name: one
    for one in (
        Framework("langgraph"),
        Framework("openai_agents", says_of_error="An error occurred while running the tool"),
        Framework("pydantic_ai"),
        Framework("strands"),
    )
}  # fmt: skip

FUNCTION = Framework("function", lacks=frozenset({"a_factory_is_called_once_in_each_run"}))
"""A plain function, which has the Python of the tests and one version."""
