"""Draws random scripts of each kind for the model, with calls that can be counted."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from bench.chaos.tools import (
    ASK_FIRST,
    ASK_IN_TIME,
    ASK_OR_CANCEL,
    BOOK,
    HANG_UP,
    LOOK_UP,
    MULL,
    NOTE,
    NOTE_AGAIN,
    NOTE_TOGETHER,
    ON_CLIENT,
    REFUSE,
    REMOVE,
    TAKE_SECONDS,
)

ERRORS = ("rate_limit", "auth", "server", "timeout", "context")


@dataclass
class Script:
    """A script, and the facts that follow from it."""

    turns: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    """The key of each tool call, and the name of the tool."""
    fails: bool = False
    waits: bool = False
    """Whether its run parks itself, and a continuation plays the rest."""

    @property
    def text(self) -> str:
        return json.dumps({"turns": self.turns})

    @property
    def said(self) -> str:
        """All words of the model in order, if the script is played to its end."""
        return " ".join(word for turn in self.turns for word in str(turn.get("text", "")).split())


class Scripts:
    """Draws scripts. Every text and every call is unique."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._number = 0

    def plain(self, most_words: int = 60) -> Script:
        """An answer in words."""
        return Script([self._words(most_words)])

    def long(self) -> Script:
        """An answer that takes seconds, so that there is time to interfere."""
        return Script([{**self._words(120, fewest=50), "delay_ms": self._dice.randint(60, 150)}])

    def tools(self, name: str = NOTE) -> Script:
        """Several steps with one call each."""
        script = Script()
        for _ in range(self._dice.randint(1, 4)):
            self._add_calls(script, [name])
        script.turns.append(self._words(20))
        return script

    def idempotent(self) -> Script:
        return self.tools(NOTE_AGAIN)

    def parallel(self) -> Script:
        """Steps with several calls, which may or may not run concurrently."""
        script = Script()
        for _ in range(self._dice.randint(1, 2)):
            names = [NOTE_TOGETHER] * self._dice.randint(2, 3)
            self._add_calls(script, [*names, NOTE] if self._dice.random() < 0.3 else names, seconds=0.5)
        script.turns.append(self._words(20))
        return script

    def slow_tool(self) -> Script:
        """A tool that takes seconds."""
        script = Script()
        self._add_calls(script, [TAKE_SECONDS], seconds=self._dice.uniform(2.0, 8.0))
        script.turns.append(self._words(20))
        return script

    def approval(self) -> Script:
        """Calls that wait for approval, sometimes beside a call that does not."""
        script = Script(waits=True)
        names = self._dice.choice([[ASK_FIRST], [ASK_FIRST], [ASK_FIRST, NOTE], [ASK_FIRST, ASK_FIRST]])
        self._add_calls(script, names)
        script.turns.append(self._words(20))
        return script

    def expires(self) -> Script:
        """A call that expires: it is denied, or its run is cancelled."""
        script = Script(waits=True)
        self._add_calls(script, [self._dice.choice([ASK_IN_TIME, ASK_OR_CANCEL])])
        script.turns.append(self._words(20))
        return script

    def client_side(self) -> Script:
        """Calls whose results the client returns, sometimes beside one that the worker runs."""
        script = Script(waits=True)
        self._add_calls(script, self._dice.choice([[ON_CLIENT], [ON_CLIENT, ON_CLIENT], [ON_CLIENT, NOTE]]))
        script.turns.append(self._words(20))
        return script

    def of_servers(self) -> Script:
        """Steps with calls of tools of MCP servers, sometimes beside one of the worker's own."""
        script = Script()
        for _ in range(self._dice.randint(1, 4)):
            names = [self._dice.choice([LOOK_UP, BOOK, BOOK, REFUSE, HANG_UP])]
            if self._dice.random() < 0.3:
                names.append(self._dice.choice([BOOK, LOOK_UP, NOTE]))
            self._add_calls(script, names, seconds=self._dice.choice([0.0, 0.0, 0.3]))
        script.turns.append(self._words(20))
        return script

    def slow_server(self) -> Script:
        """A call of an MCP server's tool that takes seconds."""
        script = Script()
        self._add_calls(script, [MULL], seconds=self._dice.uniform(2.0, 8.0))
        script.turns.append(self._words(20))
        return script

    def dangerous_server(self) -> Script:
        """Calls that wait for approval because their server warns of its tool."""
        script = Script(waits=True)
        self._add_calls(script, self._dice.choice([[REMOVE], [REMOVE], [REMOVE, BOOK], [REMOVE, REMOVE]]))
        script.turns.append(self._words(20))
        return script

    def error(self) -> Script:
        """A model that fails: at once, in the middle of a text, or after a tool."""
        script = Script(fails=True)
        if self._dice.random() < 0.4:
            self._add_calls(script, [NOTE])
        script.turns.append(self.failing_turn(after_calls=bool(script.turns)))
        return script

    def failing_turn(self, *, after_calls: bool) -> dict[str, Any]:
        """A call of the model that fails. After calls of tools, the reason is never the request's length: a compaction
        follows, and the model, which counts the answers in the history, would play an earlier turn again."""
        errors = [error for error in ERRORS if error != "context" or not after_calls]
        return {**self._words(30), "error": self._dice.choice(errors), "error_after": self._dice.choice([0, 0, 5, 15])}

    def _words(self, most: int, fewest: int = 3) -> dict[str, Any]:
        self._number += 1
        count = self._dice.randint(fewest, most)
        turn: dict[str, Any] = {
            "text": " ".join(f"t{self._number}w{word}" for word in range(count)),
            "delay_ms": self._dice.choice([10, 40, 80, 150]),
        }
        if self._dice.random() < 0.2:
            turn["reasoning"] = "one two three"
        if self._dice.random() < 0.2:
            turn["first_delay_ms"] = self._dice.randint(100, 2000)
        return turn

    def _add_calls(self, script: Script, names: list[str], seconds: float = 0.0) -> None:
        calls: list[dict[str, Any]] = []
        for name in names:
            self._number += 1
            key = f"call{self._number}"
            script.keys[key] = name
            calls.append({"name": name, "arguments": {"key": key, "seconds": seconds}})
        turn = self._words(8) if self._dice.random() < 0.5 else {}
        script.turns.append({**turn, "calls": calls})
