"""What happens in each turn: what the user says, what the model decides, what it must see, what a person does between.

All of it is drawn from the seed before anything starts. A request to the model leads to its place in the plan, whoever
sends it and how often, so the memory that must come out of a conversation does not depend on how it comes about.
"""

import random
from dataclasses import dataclass

from bench.long_conversation.account import Account, Edit, Sight
from bench.long_conversation.edits import WORDS, Drawing

QUESTION = "{name} turn {number}. {text} So much of turn {number}."

BY_PERSON = 0.03
"""The share of turns before which a person edits the memory."""
GIANT = 0.01
"""The share of questions that are longer than half of the window, so that the model is not shown their middle."""


@dataclass(frozen=True)
class PlannedTurn:
    """One turn of the conversation."""

    number: int
    question: str
    is_giant: bool
    by_person: tuple[str, str] | None
    """The label and the new text of a block that a person edits before this turn."""
    steps: list[list[Edit]]
    """The calls of each answer of the model but the last, which has none."""
    sights: list[Sight]
    """What the model must be shown before each of its answers."""


@dataclass(frozen=True)
class Plan:
    """A whole conversation."""

    turns: list[PlannedTurn]
    account: Account
    """As it must be at the end."""


def draw_plan(seed: int, name: str, turns: int, window: int) -> Plan:
    """The conversation of the agent with this name; `window` is in tokens."""
    account = Account(name)
    return Plan([_turn(seed, account, number, window) for number in range(1, turns + 1)], account)


def _turn(seed: int, account: Account, number: int, window: int) -> PlannedTurn:
    dice = random.Random(f"{seed} {account.name} {number}")
    drawing = Drawing(dice, account)
    is_giant = dice.random() < GIANT
    question = QUESTION.format(name=account.name, number=number, text=_text(dice, 4 * window if is_giant else 0))
    by_person = None
    if dice.random() < BY_PERSON:
        account.write("persona", [*account.lines("persona")[-3:], drawing.line(f"p{number}")])
        by_person = "persona", account.blocks["persona"]
    steps: list[list[Edit]] = []
    sights = [account.sight()]
    for step in range(_steps(dice)):
        steps.append(drawing.draw(f"t{number}.{step}"))
        sights.append(account.sight())
    return PlannedTurn(number, question, is_giant, by_person, steps, sights)


def _steps(dice: random.Random) -> int:
    """How many answers have calls: mostly few, at times so many that the turn alone fills a part of the window."""
    few, many = dice.choices([0, 1, 2, 3], [25, 45, 20, 10])[0], dice.randint(8, 14)
    return many if dice.random() < 0.02 else few


def _text(dice: random.Random, characters: int) -> str:
    """So many characters or more; a message of ordinary length when that is 0."""
    words = dice.choices(WORDS, k=max(dice.randint(5, 120), characters // 5))
    return " ".join(words)
