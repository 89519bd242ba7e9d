"""The code of the tools in every framework's program. It is imported in the framework's environment: no other package.

A program registers these agents, each with the model `gpt-4o` of OpenAI's chat completions at `OPENAI_BASE_URL`:

* `support`: has `INSTRUCTIONS`, and the tools below by the names of their functions: `look` (in a newer version of the
  program by the name `LOOK`), `block`, `fail`, and `send`, which needs a person's approval.
* `built`: the same agent, out of a factory that calls `reach("built")`.
* `team`: its tools `ask_expert` and `ask_second` are an agent, "Expert", with the tools `look` and `send`. The
  arguments are the framework's (`Framework.asks_expert`).
"""

import asyncio
import contextlib
import os
import signal

from tests.kit.code_agents.places import at, block_at, reach

INSTRUCTIONS = os.environ.get("HOLDFAST_AGENTS_INSTRUCTIONS", "Be brief.")
EXPERT = "You know everything."
DEPLOYED = os.environ.get("HOLDFAST_AGENTS_DEPLOYED")
"""The version that `support` declares; None: it declares none."""
LOOK = "look" if os.environ.get("HOLDFAST_AGENTS_VERSION", "1") == "1" else "look_up"

os.register_at_fork(after_in_child=lambda: reach(f"pid {os.getpid()}"))


async def look(what: str) -> str:
    """Looks for something. Of some things no body gets rid by itself."""
    await at(f"look {what}")
    match what:
        case "exit":
            os._exit(3)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "standstill":
            signal.pause()
        case "stubborn":
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        case _:
            return f"found {what}"
    return "not reached"


def block(what: str) -> str:
    """Looks for something, and blocks its thread meanwhile."""
    block_at(f"block {what}")
    return f"found {what}"


def fail(what: str) -> str:
    """Fails."""
    reach(f"fail {what}")
    raise ValueError(f"there is no {what}")


async def send(to: str) -> str:
    """Sends the letter."""
    await at(f"send {to}")
    return f"sent to {to}"
