"""The model. It derives its tool calls from the request alone, counts the request's tokens, and checks its contents."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.long_conversation.account import SHARED, Sight
from bench.long_conversation.plan import Plan, PlannedTurn
from tests.kit.model_server import Call, ReceivedRequest, Turn
from tests.kit.model_server.turn import Failure
from tests.kit.model_server.window import asks_for_summary, said_to, tokens_of
from tests.kit.provider_rules.request import broken_rules

QUESTION = re.compile(r"(\w+) turn (\d+)\. ")
CALL_ID = re.compile(r"call_(\d+)_(\d+)_(\d+)_(\d+)")
"""Turn, step, place in its answer, number of the answer."""
ANSWER = re.compile(r"Answer (\d+) to turn (\d+)\.")
SUMMARY = re.compile(r"Summary (\d+): ")
BLOCK = re.compile(
    r"<(?P<label>[\w-]+)>\n(?:<description>.*?</description>\n)?<size>[^<]*</size>\n<value>\n(?P<value>.*?)\n</value>",
    re.DOTALL,
)


@dataclass(frozen=True)
class Answered:
    """An answered request, and its flaws."""

    tokens: int
    flaws: list[str] = field(default_factory=list[str])


@dataclass
class PlannedModel:
    """Answers by the plans. Pass it to `ModelServer.answer_with`."""

    plans: Mapping[str, Plan]
    """By the name of the agent."""
    window: int
    uncounted: str
    """The name of the agent whose answers have no count of tokens, so that its window is kept by estimates."""
    answers: dict[int, Answered] = field(default_factory=dict[int, Answered])
    """The answers by number, including answers that were lost with their worker."""
    asked: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    """The number of requests in each turn of each agent."""
    summaries: dict[int, Answered] = field(default_factory=dict[int, Answered])
    first_after: dict[int, int] = field(default_factory=dict[int, int])
    """By summary's number: the tokens of the first request with it."""
    refused: list[int] = field(default_factory=list[int])
    """The tokens of each request that was too long."""

    @property
    def flawed(self) -> int:
        """The number of requests with flaws, including flaws that do not count."""
        return sum(bool(answered.flaws) for answered in self.answers.values())

    def __call__(self, request: ReceivedRequest) -> Turn:
        tokens = tokens_of(request)
        if tokens > self.window:
            self.refused.append(tokens)
            return Turn(failure=Failure("context"))
        number = len(self.answers) + len(self.summaries) + 1
        if asks_for_summary(request):
            self.summaries[number] = Answered(tokens)
            text = f"Summary {number}: they have talked of trees and water. " + "And so on. " * 20
            return Turn(text=text, prompt_tokens=tokens, cached_tokens=0)
        return self._answer(request, number, tokens)

    def _answer(self, request: ReceivedRequest, number: int, tokens: int) -> Turn:
        messages: list[dict[str, Any]] = request.body["messages"]
        place, name, turn = self._question(messages)
        step = _steps_taken(messages[place:])
        self.asked[name, turn.number] += 1
        self.answers[number] = Answered(tokens, list(_flaws(request, messages[place], turn, step, name)))
        for found in SUMMARY.findall(said_to(request)):
            self.first_after.setdefault(int(found), tokens)
        is_counted = name != self.uncounted
        if step == len(turn.steps):
            text = f"Answer {number} to turn {turn.number}. That is what I think of it."
            return Turn(text=text, prompt_tokens=tokens, cached_tokens=0, usage=is_counted)
        calls = [
            Call(edit.tool, dict(edit.arguments), id=f"call_{turn.number}_{step}_{at}_{number}")
            for at, edit in enumerate(turn.steps[step])
        ]
        text = "Let me note that. " if step % 2 else ""
        return Turn(text=text, calls=calls, prompt_tokens=tokens, cached_tokens=0, usage=is_counted)

    def _question(self, messages: list[dict[str, Any]]) -> tuple[int, str, PlannedTurn]:
        """Returns the newest question's position, its agent's name and its turn."""
        for place in range(len(messages) - 1, -1, -1):
            found = QUESTION.match(str(messages[place]["content"])) if messages[place]["role"] == "user" else None
            if found:
                return place, found[1], self.plans[found[1]].turns[int(found[2]) - 1]
        raise AssertionError(f"no question is left in a request: {str(messages)[:500]}")


def _steps_taken(since: list[dict[str, Any]]) -> int:
    """Returns how many answers of this turn are in the history. The last one's calls have its number."""
    for message in reversed(since):
        for call in message.get("tool_calls") or ():
            found = CALL_ID.fullmatch(call["id"])
            assert found is not None
            return int(found[2]) + 1
    return 0


def _flaws(request: ReceivedRequest, question: dict[str, Any], turn: PlannedTurn, step: int, name: str) -> "list[str]":
    flaws = [f"the provider would refuse it: {rule}" for rule in broken_rules(request)]
    shown = str(question["content"])
    if turn.is_giant:
        kept = shown[:30] == turn.question[:30] and shown[-30:] == turn.question[-30:]
    else:
        kept = shown == turn.question
    if not kept:
        flaws.append(f"the question is not in its own words: {shown[:200]}")
    return [*flaws, *differences(seen_in(request.body["messages"][0]["content"]), turn.sights[step], name)]


def seen_in(system: str) -> dict[str, str]:
    """Parses the memory blocks in the instructions."""
    return {found["label"]: found["value"] for found in BLOCK.finditer(system)}


def differences(blocks: Mapping[str, str], expected: Sight, name: str) -> list[str]:
    """Returns how an agent's blocks differ from the account. Of the shared one, only the agent's lines are compared."""
    own = tuple(line for line in blocks.get(SHARED, "").split("\n") if line.startswith(f"{name} "))
    wrong = [] if own == expected.own_lines else [f"{SHARED}: its lines are {own}, must be {expected.own_lines}"]
    for label in sorted((blocks.keys() | expected.blocks.keys()) - {SHARED}):
        if blocks.get(label) != expected.blocks.get(label):
            wrong.append(f"{label}: is {blocks.get(label)!r}, must be {expected.blocks.get(label)!r}")
    return wrong
