"""Takes an agent's secrets out of what its tools return and print, before anybody sees it: the model, the people who
read the conversation, streams.

It is for accidents: a program that prints its settings, an error that quotes a request with its key. It stops no tool
that means to give a secret away: one that is spelled backwards, in pieces or encoded is not recognized.

A tenant chooses how many secrets there are, what they are and what a tool says. So what one result may cost is bounded:
each spelling is looked for by itself, in a time that grows with the text alone, and of a text that is too long for so
many spellings the end is left out.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from worker.tools.invocation import ToolOutcome

SHORTEST = 8
"""Characters of the shortest value that is looked for. Shorter ones are words, which stand in any text."""

AT_ONCE = 500_000
"""Characters times spellings that are looked through on the event loop: a millisecond; 30 for the worst of texts."""

MOST = 100_000_000
"""Characters times spellings that are looked through at all: 0.2 s on a thread; some seconds for the worst of texts."""

CUT = "... [left out: too long to be looked through for the agent's secrets]"

_NOT_IN_A_NAME = re.compile(r"[^\w.-]")


async def without_secrets(outcome: ToolOutcome, secrets: Mapping[str, str]) -> ToolOutcome:
    """The outcome with `[secret NAME]` in the place of each value."""
    shown_as = dict(_spellings(secrets))
    if not shown_as:
        return outcome
    said = sum(map(len, (outcome.text, *outcome.stdout, *outcome.stderr)))
    if said * len(shown_as) <= AT_ONCE:
        return _redacted(outcome, shown_as)
    return await asyncio.to_thread(_redacted, outcome, shown_as)


def _redacted(outcome: ToolOutcome, shown_as: Mapping[str, str]) -> ToolOutcome:
    # The longest first: a secret may be the beginning of another one.
    spellings = sorted(shown_as, key=len, reverse=True)
    longest = MOST // len(spellings)

    def redacted(text: str) -> str:
        text = text if len(text) <= longest else text[:longest] + CUT
        for spelling in spellings:
            text = text.replace(spelling, shown_as[spelling])
        return text

    return replace(
        outcome,
        text=redacted(outcome.text),
        stdout=redacted("\n".join(outcome.stdout)).split("\n") if outcome.stdout else [],
        stderr=[redacted(text) for text in outcome.stderr],
    )


def _spellings(secrets: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each way in which a value is usually written, with what stands in its place: as it is, as JSON and as Python
    write it, and each of its lines, because output is looked through line by line."""
    for name, value in secrets.items():
        shown = f"[secret {_NOT_IN_A_NAME.sub('_', name)}]"
        for text in (value, *value.splitlines()):
            as_json = json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]
            ways = {text, text.strip(), *as_json, repr(text)[1:-1]}
            yield from ((way, shown) for way in ways if len(way) >= SHORTEST)
