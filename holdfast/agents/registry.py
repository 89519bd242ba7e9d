"""The agents of a program: `@agent` and `register` record them for the host process."""

import inspect
import os
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

from holdfast.agents.adapters import Body, body_for

OnChange = Literal["fail", "restart"]
WhoseModels = Literal["own", "worker"]

AnyBody = TypeVar("AnyBody", bound=Body)

MODELS_VARIABLE = "HOLDFAST_AGENTS_MODELS"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class Agent(NamedTuple):
    """One registered agent."""

    name: str
    body: Body
    description: str
    on_change: OnChange
    framework: str
    models: WhoseModels
    version: str
    """Empty: the agent declares none."""
    made_of: Any
    """The registered function or agent."""

    def described(self) -> dict[str, str]:
        """Returns all fields but the body and the registered object."""
        return {name: value for name, value in self._asdict().items() if name not in ("body", "made_of")}


REGISTERED: dict[str, Agent] = {}
"""The agents of this process, by name."""


def agent(
    name: str,
    *,
    description: str = "",
    on_change: OnChange = "fail",
    models: WhoseModels | None = None,
    version: str | None = None,
) -> Callable[[AnyBody], AnyBody]:
    """Registers an async function as the agent of this name. Its model handle is `code/<name>`.

    `on_change` decides what happens to a run if the code after a deploy makes other calls than the recorded ones: the
    run fails (`body_changed`), or its turn begins again. `models`: the models that the agent calls. `own`: those of its
    own clients, with its own keys. `worker`: the worker's, as `Run.models`. None: as `HOLDFAST_AGENTS_MODELS` says.
    With a `version`, runs that began in it continue in it while a worker with it is alive, and otherwise in the newest;
    without one, any worker with the agent continues them.
    """

    def registered(body: AnyBody) -> AnyBody:
        register(name, body, description=description, on_change=on_change, models=models, version=version)
        return body

    return registered


def register(
    name: str,
    agent: Any,
    *,
    description: str = "",
    on_change: OnChange = "fail",
    models: WhoseModels | None = None,
    version: str | None = None,
) -> None:
    """Registers an agent that is made elsewhere: an async function, as `@agent` does; an agent of a framework; or a
    function, with the run as its parameter or without any, which makes such an agent for each run.

    Raises `ValueError` for a name that is taken or invalid, or for an invalid version, and `TypeError` for an object
    that is not an agent.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an agent: letters, digits, '.', '_' and '-', at most 100")
    if name in REGISTERED:
        raise ValueError(f"two agents are named {name!r}")
    if version is not None and not _VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is no version: letters, digits, '.', '_', '+' and '-', at most 100")
    if on_change not in ("fail", "restart"):
        raise ValueError(f"on_change of the agent {name!r} is 'fail' or 'restart', not {on_change!r}")
    whose = models or os.environ.get(MODELS_VARIABLE, "own")
    if whose not in ("own", "worker"):
        raise ValueError(f"models of the agent {name!r} is 'own' or 'worker', not {whose!r}")
    body, framework = body_for(name, agent)
    said = description or _first_line(agent)
    REGISTERED[name] = Agent(name, body, said, on_change, framework, whose, version or "", agent)


def _first_line(agent: Any) -> str:
    """Returns the first line of a function's docstring. An object has only its class's, which is not about it."""
    return (inspect.getdoc(agent) or "").partition("\n")[0] if inspect.isroutine(agent) else ""
