"""Draws scripts of agents that call other agents, and knows which run each call begins."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.chaos.ledger import Ledger, RunRecord, Story, Thread
from bench.chaos.scripts import Script, Scripts
from shared.domain.tool_catalog import ASKS_AGENT, RUNS_AGENT, TELLS_AGENT

OF_AGENTS = (RUNS_AGENT, ASKS_AGENT, TELLS_AGENT)
"""The tools by which agents call agents."""

MARKER = "task"


@dataclass
class Delegated:
    """The request of a call of an agent. The other agent's message contains the marker."""

    marker: str
    tool: str
    script: Script
    """The script of the other agent."""
    kind: str
    notes: bool
    story: Story | None = None
    """The story of the run that the call begins."""


@dataclass
class Delegations:
    """All requests of agents of one project to each other, by marker."""

    ledger: Ledger
    by_marker: dict[str, Delegated] = field(default_factory=dict[str, Delegated])

    def add(self, story: Story, tool: str, script: Script) -> str:
        """Stores the request of a call. Returns its marker."""
        marker = self.ledger.otid(MARKER)
        self.by_marker[marker] = Delegated(marker, tool, script, f"{story.kind.partition(',')[0]}'s child", story.notes)
        return marker

    def adopt(self, marker: str, run_id: str, thread: Thread) -> RunRecord:
        """Records the run that a call has begun."""
        known = self.ledger.runs.get(run_id)
        if known is not None:
            return known
        asked = self.by_marker[marker]
        if asked.story is None:
            asked.story = Story(0, asked.kind, thread, asked.notes, keys=dict(asked.script.keys))
        # The answer to a message depends on the other agent's history before it.
        is_sure = asked.tool == RUNS_AGENT
        script = asked.script if is_sure else replace(asked.script, fails=True)
        record = self.ledger.accept(run_id, asked.story, script, None)
        record.is_pushed = not is_sure
        return record


@dataclass
class ChildScripts:
    """Draws scripts for the agents of a story."""

    scripts: Scripts
    delegations: Delegations
    dice: random.Random

    def work(self) -> Script:
        """Draws the script of a called agent, which never waits for a person."""
        scripts = self.scripts
        kinds = [scripts.plain, scripts.long, scripts.tools, scripts.slow_tool, scripts.parallel, scripts.error]
        return self.dice.choices(kinds, [4, 2, 3, 2, 1, 1])[0]()

    def task(self, story: Story, named: str, script: Script) -> dict[str, Any]:
        """A call that gives an agent a task."""
        marker = self.delegations.add(story, RUNS_AGENT, script)
        first, *rest = script.turns
        # The marker comes first, so that no marker of a nested task precedes it.
        sent = Script(
            [{"reasoning": marker, **{name: part for name, part in first.items() if name != "reasoning"}}, *rest]
        )
        return {"name": RUNS_AGENT, "arguments": {"agent": named, "task": sent.text}}

    def message(self, story: Story, tool: str, agent_id: str, script: Script) -> dict[str, Any]:
        """A call that sends an agent a message. The agent plays the script that its client has sent it."""
        marker = self.delegations.add(story, tool, script)
        return {"name": tool, "arguments": {"message": f"Here is {marker}.", "other_agent_id": agent_id}}

    def calling(self, calls: Sequence[dict[str, Any]], before: Script | None = None) -> Script:
        """Returns the script of an agent with these calls in one answer: alone, after calls of tools, or beside one."""
        script, beside = Script(), list[dict[str, Any]]()
        if before is not None:
            script.keys, script.waits = dict(before.keys), before.waits
            *steps, last = before.turns[:-1]
            beside = last["calls"]
            script.turns.extend(steps)
            if not before.waits and self.dice.random() < 0.5:
                script.turns.append(last)
                beside = []
        together = [*beside, *calls]
        self.dice.shuffle(together)
        begins = self.scripts.plain(8).turns[0] if self.dice.random() < 0.5 else {}
        script.turns += [{**begins, "calls": together}, self.scripts.plain(20).turns[0]]
        return script
