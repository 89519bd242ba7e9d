"""The modules that make bodies of frameworks' agents. Only the frameworks that the program uses are imported."""

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from holdfast.agents.run import Run

Body = Callable[[Run], Awaitable[Any]]
"""An async function that does the work of a run. If it returns a text, that is the answer."""

FUNCTION = "function"
"""Replaces the name of a framework for plain functions."""


class Adapter(NamedTuple):
    """The module that makes bodies of one framework's agents."""

    framework: str
    of_class: str
    """The beginning of the modules' names that define its agents' classes."""
    module: str
    """Provides `body_of(agent, name)`, a body for an agent that many runs share, and `run_agent(run, agent)`, which
    executes an agent of one run. It may provide `warning_of(name, value)`: a sentence if the program's value works
    differently from the framework's documents, with what to do about it; None for any other value."""
    can_share: bool
    """Whether several runs may use it in one process, because it changes nothing that they share."""

    @property
    def is_used(self) -> bool:
        """Whether the program has imported the framework, and not a package of its own with the same name."""
        return self.of_class.rstrip(".") in sys.modules

    def made_by(self, value: Any) -> bool:
        """Whether the value is an agent of the framework."""
        return any(f"{one.__module__}.".startswith(self.of_class) for one in type(value).__mro__)

    def load(self) -> Any:
        """Returns the adapter's module."""
        return importlib.import_module(self.module)


ADAPTERS: tuple[Adapter, ...] = (
    Adapter("openai_agents", "agents.agent.", "holdfast.agents.openai_agents", can_share=False),
    Adapter("pydantic_ai", "pydantic_ai.agent.", "holdfast.agents.pydantic_ai", can_share=True),
    Adapter("strands", "strands.agent.", "holdfast.agents.strands", can_share=False),
    Adapter("langgraph", "langgraph.pregel.", "holdfast.agents.langgraph", can_share=False),
)


_SHARING: list[bool] = []


def begin_sharing() -> None:
    """Records that several runs share this process."""
    _SHARING.append(True)


def refuse_sharing(module: str) -> None:
    """An adapter calls this at its import if it changes objects that the runs of a process share. Raises `ImportError`
    in such a process, because the worker could not know about the adapter."""
    if _SHARING:
        raise ImportError(f"import {module} at the top of the module of agents: its runs cannot share a process")


def body_for(name: str, value: Any) -> tuple[Body, str]:
    """Returns the body that executes the value, and the framework's name. The value is an async function, an agent of a
    framework, or a function that makes an agent for each run. Raises `TypeError` for anything else."""
    adapter = _adapter_of(value)
    if adapter is not None:
        return adapter.load().body_of(value, name), adapter.framework
    if inspect.iscoroutinefunction(value):
        return value, FUNCTION
    if inspect.isasyncgenfunction(value):
        raise TypeError(f"the agent {name!r} yields: give a function that calls run.emit_text instead")
    if not inspect.isroutine(value):
        raise TypeError(
            f"the agent {name!r} is a {type(value).__name__}: give an async function, an agent of "
            f"{', '.join(one.framework for one in ADAPTERS) or 'a framework'}, or a function that makes one"
        )
    used = [one for one in ADAPTERS if one.is_used]
    for one in used:
        one.load()  # before the fork, not in every run
    return _made_per_run(name, value), used[0].framework if len(used) == 1 else FUNCTION


def warnings_of(values: Iterable[tuple[str, Any]]) -> list[str]:
    """Returns the warnings of the program's adapters about its values: one for each value, under its first name."""
    used = [sys.modules[one.module] for one in ADAPTERS if one.module in sys.modules]
    asked = [one.warning_of for one in used if hasattr(one, "warning_of")]
    named: dict[int, tuple[str, Any]] = {}
    for name, value in values:
        named.setdefault(id(value), (name, value))
    found = (warning_of(name, value) for name, value in named.values() for warning_of in asked)
    return [warning for warning in found if warning is not None]


def _adapter_of(value: Any) -> Adapter | None:
    return next((one for one in ADAPTERS if one.made_by(value)), None)


def _made_per_run(name: str, factory: Callable[..., Any]) -> Body:
    takes_run = bool(inspect.signature(factory).parameters)

    async def body(run: Run) -> Any:
        made = factory(run) if takes_run else factory()
        adapter = _adapter_of(made)
        if adapter is None:
            raise TypeError(
                f"the agent {name!r} is a function that is not async, so it has to return an agent of a framework; it "
                f"has returned a {type(made).__name__}"
            )
        return await adapter.load().run_agent(run, made)

    return body
