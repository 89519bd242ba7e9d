"""Checks a conversation that has ended. Each check returns its findings as texts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa

from bench.long_conversation.account import SHARED
from bench.long_conversation.model import ANSWER, CALL_ID, SUMMARY, PlannedModel, differences
from bench.long_conversation.plan import PlannedTurn
from bench.long_conversation.talk import PAGE, Talk
from shared.domain.agents import Block
from shared.domain.runs import Usage
from shared.sql.engine import Database
from shared.sql.run_tables import runs
from shared.sql.tables import blocks, from_json, messages

Fact = tuple[Any, ...]
"""A fact of a history: a message's author, content and turn."""


@dataclass
class Told:
    """The facts of a history, in order."""

    facts: list[Fact] = field(default_factory=list[Fact])
    answers: list[int] = field(default_factory=list[int])
    """The numbers of the model's answers in the history."""
    answers_of: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    """The same by run."""
    turns: dict[str, int] = field(default_factory=dict[str, int])
    """The turn of each run."""
    summaries: dict[int, Any] = field(default_factory=dict[int, Any])
    """Each summary's message, by its number."""
    wrong: list[str] = field(default_factory=list[str])

    def take(self, message: Any, questions: dict[str, int]) -> None:
        """Takes a message of the listing. `questions` has the turn of each question."""
        match message.message_type:
            case "system_message":
                pass
            case "user_message":
                self.facts.append(("asked", questions.get(message.content, message.content[:100])))
            case "tool_call_message":
                self._calls(message)
            case "tool_return_message":
                self._returns(message)
            case "assistant_message":
                self._text(message)
            case "summary_message":
                self._summary(message)
            case other:
                self.wrong.append(f"a message of type {other} is in the history: {message}")

    def _calls(self, message: Any) -> None:
        for call in message.tool_calls:
            turn, step, place, answer = _place_of(call)
            self.facts.append(("called", turn, step, place, call.name))
            self._count(message.run_id, answer)

    def _returns(self, message: Any) -> None:
        for result in message.tool_returns:
            turn, step, place, _ = _place_of(result)
            self.facts.append(("returned", turn, step, place, result.status))

    def _text(self, message: Any) -> None:
        """Takes the text that ends a turn. The model's texts beside calls end none."""
        if found := ANSWER.search(message.content):
            self.facts.append(("answered", int(found[2])))
            self.turns[message.run_id] = int(found[2])
            self._count(message.run_id, int(found[1]))

    def _summary(self, message: Any) -> None:
        found = SUMMARY.search(message.summary)
        number = int(found[1]) if found else -1
        if number in self.summaries:
            self.wrong.append(f"summary {number} is listed twice, or is not the model's: {message.summary[:80]}")
        self.summaries[number] = message

    def _count(self, run_id: str, answer: int) -> None:
        self.answers.append(answer)
        self.answers_of.setdefault(run_id, set()).add(answer)


def _place_of(call: Any) -> tuple[int, ...]:
    """Reads turn, step, place in its answer and number of the answer from a call's id."""
    found = CALL_ID.fullmatch(call.tool_call_id)
    assert found is not None, call
    return tuple(map(int, found.groups()))


def _expected(turns: list[PlannedTurn]) -> Iterator[Fact]:
    for turn in turns:
        yield "asked", turn.number
        for step, edits in enumerate(turn.steps):
            for place, edit in enumerate(edits):
                yield "called", turn.number, step, place, edit.tool
            for place, edit in enumerate(edits):
                yield "returned", turn.number, step, place, "error" if edit.is_refused else "success"
        yield "answered", turn.number


@dataclass
class Checks:
    """Checks one ended conversation."""

    talk: Talk
    model: PlannedModel
    database: Database
    told: Told = field(default_factory=Told)

    async def wrong(self) -> list[str]:
        """Returns all findings."""
        questions = {turn.question: turn.number for turn in self.talk.plan.turns}
        async for message in self.talk.history():
            self.told.take(message, questions)
        found = [*self.told.wrong, *self._history(), *self._requests(), *await self._summaries()]
        found += [*await self._memory(), *await self._passages(), *await self._runs()]
        return [f"{self.talk.name}: {one}" for one in found]

    def _history(self) -> Iterator[str]:
        """Checks that the history has every question, call, result and answer once, in order."""
        expected = list(_expected(self.talk.plan.turns))
        for number, (found, wanted) in enumerate(zip_longest(self.told.facts, expected)):
            if found != wanted:
                yield f"the history has {found} in place of {wanted} (at {number} of {len(expected)})"
                break
        for fact, times in Counter(self.told.facts).items():
            if times > 1:
                yield f"the history has {times} times: {fact}"

    def _requests(self) -> Iterator[str]:
        """Checks the requests of all answers in the history. Answers to a worker that lost its run do not count."""
        for number in sorted(set(self.told.answers)):
            for flaw in self.model.answers[number].flaws:
                yield f"answer {number} was asked for with a request that is wrong: {flaw}"

    async def _summaries(self) -> list[str]:
        query = sa.select(messages.c.in_context, messages.c.left_because).where(
            messages.c.thread_id == self.talk.thread_id, messages.c.body.contains('"type":"summary"')
        )
        async with self.database.read() as connection:
            stored = (await connection.execute(query)).all()
        wrong: list[str] = []
        if len(stored) != len(self.told.summaries):
            wrong.append(f"{len(stored)} summaries are stored, {len(self.told.summaries)} are listed")
        if (in_context := sum(row.in_context for row in stored)) > 1:
            wrong.append(f"{in_context} summaries are in the context at once")
        if unknown := self.told.summaries.keys() - self.model.summaries.keys():
            wrong.append(f"summaries that the model has not written: {sorted(unknown)}")
        return wrong

    async def _memory(self) -> list[str]:
        """Checks that each block has its text, and the right number of changes."""
        listing = self.talk.client.agents.blocks.list(self.talk.agent_id, limit=PAGE)
        found = {block.label or "": block async for block in listing}
        account = self.talk.plan.account
        wrong = differences({label: block.value for label, block in found.items()}, account.sight(), self.talk.name)
        for label, block in found.items():
            version = await _version_of(block.id, self.database)
            if label != SHARED and version != account.changes[label]:
                wrong.append(f"{label}: is version {version}, must be {account.changes[label]}")
        return wrong

    async def _passages(self) -> list[str]:
        """Checks that archival memory has each passage once, in the order of insertion."""
        found, expected = [text async for text in self.talk.passages()], self.talk.plan.account.passages
        if found == expected:
            return []
        lost, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
        return [f"passages: {len(found)}, must be {len(expected)}; lost {dict(lost)}, too many {dict(more)}"]

    async def _runs(self) -> list[str]:
        """Checks that each turn has one completed run, whose usage counts all its answers."""
        query = sa.select(runs).where(runs.c.thread_id == self.talk.thread_id)
        async with self.database.read() as connection:
            rows = (await connection.execute(query)).all()
        wrong = [
            f"run {row.id} is {row.status}, {row.stop_reason}"
            for row in rows
            if (row.status, row.stop_reason) != ("completed", "end_turn")
        ]
        if len(rows) != len(self.talk.plan.turns):
            wrong.append(f"there are {len(rows)} runs for {len(self.talk.plan.turns)} turns")
        if self.talk.name != self.model.uncounted:
            wrong += [one for row in rows for one in self._usage(row)]
        return wrong

    def _usage(self, row: Any) -> Iterator[str]:
        """Checks that a run with one owner has the model's count of tokens, and that one with lost answers has more."""
        answers = self.told.answers_of.get(row.id, set())
        summaries = {number for number, message in self.told.summaries.items() if message.run_id == row.id}
        counted = sum(self.model.answers[number].tokens for number in answers)
        counted += sum(self.model.summaries[number].tokens for number in summaries)
        used = from_json(row.usage, Usage).prompt_tokens
        turn = self.told.turns.get(row.id, 0)
        is_whole = row.fence == 1 and self.model.asked[self.talk.name, turn] == len(answers)
        if used < counted or (is_whole and used != counted):
            yield f"run {row.id} of turn {turn} has used {used} tokens, the model has counted {counted}"
        steps = len(self.talk.plan.turns[turn - 1].steps) + 1
        if row.step_count != steps and is_whole:
            yield f"run {row.id} of turn {turn} has {row.step_count} steps, must have {steps}"


async def check_shared(talks: list[Talk], block_id: str, database: Database) -> list[str]:
    """Checks that the shared block has the lines of both agents and nothing else, and the right number of changes."""
    block = await talks[0].client.blocks.retrieve(block_id)
    wanted = sorted(line for talk in talks for line in talk.plan.account.own_lines)
    found = sorted(block.value.split("\n")) if block.value else []
    wrong = [] if found == wanted else [f"{SHARED}: its lines are {found}, must be {wanted}"]
    version, changes = await _version_of(block_id, database), sum(talk.plan.account.changes[SHARED] for talk in talks)
    return wrong if version == changes else [*wrong, f"{SHARED}: is version {version}, must be {changes}"]


async def _version_of(block_id: str, database: Database) -> int:
    """Returns the number of a block's changes."""
    async with database.read() as connection:
        found = await connection.execute(sa.select(blocks.c.document).where(blocks.c.id == block_id))
        return from_json(found.scalar_one(), Block).version
