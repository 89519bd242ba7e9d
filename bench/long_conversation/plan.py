"""The plan of each turn: the user's message, the model's calls, the memory that it must see, and a person's edits.

All of it is drawn from the seed before anything starts. The model finds a request's place in the plan, whichever worker
sends it and how often, so the resulting memory does not depend on the faults.
"""

import random
from dataclasses import dataclass

from bench.long_conversation.account import Account, Edit, Sight
from bench.long_conversation.edits import WORDS, Drawing

QUESTION = "{name} turn {number}. {text} So much of turn {number}."

BY_PERSON = 0.03
"""The share of turns before which a person edits the memory."""
GIANT = 0.01
"""The share of questions that are longer than half of the window, so that the model does not get their middle."""


@dataclass(frozen=True)
class PlannedTurn:
    """One turn of the conversation."""

    number: int
    question: str
    is_giant: bool
    by_person: tuple[str, str] | None
    """The label and the new text of a block that a person edits before this turn."""
    steps: list[list[Edit]]
    """The calls of each answer of the model except the last, which has none."""
    sights: list[Sight]
    """The memory that the model must see before each of its answers."""


@dataclass(frozen=True)
class Plan:
    """A whole conversation."""

    turns: list[PlannedTurn]
    account: Account
    """The memory at the end."""


def draw_plan(seed: int, name: str, turns: int, window: int) -> Plan:
    """Draws the conversation of the agent with this name. `window`: tokens."""
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
    """Draws the number of answers with calls: mostly few, sometimes so many that they fill a part of the window."""
    few, many = dice.choices([0, 1, 2, 3], [25, 45, 20, 10])[0], dice.randint(8, 14)
    return many if dice.random() < 0.02 else few


def _text(dice: random.Random, characters: int) -> str:
    """Draws a text of at least this many characters; of ordinary length for 0."""
    words = dice.choices(WORDS, k=max(dice.randint(5, 120), characters // 5))
    return " ".join(words)
