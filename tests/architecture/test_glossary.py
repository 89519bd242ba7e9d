"""Rule 16: one word per idea, the field's own. README has the glossary, and the words that were given up stay away.

A glossary that the code does not speak misleads. So each of its words is a name in the product, and a retired word is
found in names, log events, comments, OpenAPI texts (the routes' docstrings) and documents alike. And a sentence of the
product's prose has a head: an event, a row, a caller, a worker, never a bare "What" or "Who".
"""

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from tests.kit.project.documents import ROOT, documents
from tests.kit.project.source_tree import Source, bench_sources, expect_none, product_sources, suite_sources

GLOSSARY_ROW = re.compile(r"^\| (?P<word>[a-z ]+) \| (?!means \|)", re.MULTILINE)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
SNAKE = re.compile(r"[a-z]+(?:_[a-z0-9]+)+")


class Retired(NamedTuple):
    """A word that was given up. `pattern` is looked for in lower case, with spaces for underscores."""

    pattern: str
    instead: str


IN_TEXTS = (
    Retired(r"\b(?:rings?|rung|ringing)\b", "dispatch"),
    Retired(r"\bbells?\b", "queue, or notice"),
    Retired(r"\bstall(?:s|ed|ing)?\b", "attempt without progress"),
    Retired(r"\bcarr(?:y|ies|ied|ying)(?: \w+){0,3} out\b|\bcarrying run\b", "continuation"),
    Retired(r"\bthread line\b|\bin line (?:behind|for)\b|\bwaiting line\b", "queue"),
    Retired(r"\btakeover\b|\btake-overs?\b|\blogs? (?:\w+ ){0,2}taken over\b", "adopt, for a log"),
    Retired(r"\bh[eo]ld(?:s|ing)? on\b|\binsists?\b", "retry while unavailable"),
    Retired(r"\bstranded\b|\bnobody.s hands\b", "orphaned"),
    Retired(r"\breserved (?:numbers?|seq|log)\b", "numbers belong to a fence"),
    Retired(r"\bunowned\b", "orphaned"),
    Retired(r"\bamiss\b", "wrong, or the problem itself"),
    Retired(r"\bhands on\b", "the lock, or the lease"),
)
"""Looked for in names and in prose."""

IN_PLAIN_PROSE = (
    Retired(r"\bwhoever\b|\bwho only\b", "the actor: worker, reader, API, operator, caller"),
    Retired(r"\b(?:is|are|was|were|be) told\b", "gets, or what the actor does: calls, reports, prints"),
    Retired(r"\bc[ao]mes? of it\b", "the result"),
    Retired(r"\bin the place of\b|\btakes? the place of\b", "in place of; replaces"),
    Retired(r"\bcame of\b|\bcome to nothing\b", "outcome, result"),
    Retired(r"\bhears? of\b|\bheard of\b", "receives, learns"),
    Retired(r"\bhangs? on\b", "belongs to, refers to"),
)
"""As `IN_TEXTS`, in the folders of `PLAIN` and `PLAIN_ALONE` and in documents only."""

IN_PLAIN_CODE = (*IN_PLAIN_PROSE, Retired(r"\bsomebody\b", "the actor: worker, reader, API, operator, caller"))
"""As `IN_PLAIN_PROSE`, without the documents: their readers have colleagues."""

PLAIN = (
    "api/access/",
    "api/ag_ui/",
    "api/ai_sdk/",
    "api/answers/",
    "api/callbacks/",
    "api/console/__init__.py",
    "api/console/static_files.py",
    "api/letta/",
    "api/mcp/",
    "api/openai/",
    "api/pages/",
    "api/routes/",
    "api/runs/",
    "api/tool_source/",
    "bench/",
    "cli/",
    "holdfast/",
    "shared/archival/",
    "shared/domain/",
    "shared/mcp/",
    "shared/network/",
    "shared/packages/",
    "shared/process/",
    "shared/redis/",
    "shared/runs/",
    "shared/sql/access/",
    "shared/sql/archival/",
    "shared/sql/definitions/",
    "shared/sql/history/",
    "shared/sql/migrations/",
    "shared/sql/runs/",
    "shared/telemetry/",
    "worker/agents/",
    "worker/bodies/",
    "worker/models/",
    "worker/proxy/",
    "worker/queue/",
    "worker/run/",
    "worker/runners/",
    "worker/tools/",
)
"""Folders whose every sentence has been rewritten: it has an actor and a verb."""

PLAIN_ALONE = ("api", "shared", "shared/sql", "worker")
"""The same for the files that lie directly in these folders."""

IN_NAMES = (
    Retired(r"\bmoments\b", "time, date"),
    Retired(r"\blanes?\b", "concurrency"),
    Retired(r"\bdoors?\b", "proxy, or the thing itself"),
    Retired(r"\bstanding clock\b", "frozen clock"),
    Retired(r"\bg(?:ive|iven) back\b", "release, for a job; hand over, for a run"),
    Retired(r"\bleave behind\b|\blet go\b", "hand over"),
    Retired(r"\breserved?_(?:seq|log|numbers?)\b", "numbers belong to a fence"),
    Retired(r"\blog (?:mark|id)\b|\bgap after\b|\blog behind\b", "follows"),
    Retired(r"\bsurely\b|\bwhoever\b", "the actor's name"),
    Retired(r"\blease keeper\b|\bcarrying\b|\binsist\b|\bproduct parts\b", "the glossary's word"),
    Retired(r"\bbrought agents\b|\bplaced message\b", "imported agents, imported message"),
    Retired(r"\btaken log\b|\btake log\b", "recovered log"),
    Retired(r"\bdirect model\b|\bdirect wire\b", "HTTP model, provider protocol"),
    Retired(r"\bwalled sandbox\b|\btool shelf\b", "isolated sandbox; base tool seeder"),
    Retired(r"\btell agent\b|\bdeny what waits\b", "set last stop reason, deny pending"),
    Retired(r"\bupkeep\b|\babsent lists\b", "maintenance; unsupported resources"),
)
"""Looked for in names and log events only: in prose they are English."""

IN_PRODUCT_NAMES = (
    *IN_NAMES,
    Retired(r"\btold\b", "the thing itself: events, chunks, an error, a report"),
    Retired(r"\beverybodys\b|\brun alone\b", "unscoped; run quarantined"),
    Retired(r"\bbrought (?:tool|agent|history)\b", "imported tool, agent, history"),
)
"""As `IN_NAMES`, in the product."""

LAUNCHER = sorted((ROOT / "holdfast").rglob("*.py"))

ALLOWED: dict[str, tuple[str, str]] = {
    "tests/kit/services/tcp_proxy.py": (r"stall.*", "a connection stalls: the networks' own word"),
    "tests/kit/product/behind_proxies.py": (r"stall.*", "as above"),
    "tests/faults/": (r"stalled", "as above"),
    "bench/chaos/": (r"stall.*", "as above"),
    "api/tool_source/": (r"reserved", "parameters that a tool's own signature may not use"),
    "tests/unit/": (r"reserved", "as above"),
    "api/mcp/agent_tools.py": (r"is told", "texts for clients and models"),
    "api/mcp/service.py": (r"was told", "as above"),
    "worker/bodies/summary.py": (r"takes the place of", "instructions for a model"),
    "CHANGELOG.md": (r"stalled|unowned", "earlier names, which it says"),
    "docs/decisions/0009": (r"reserved.*", "says what is not done"),
    "README.md": (r"holds on", "the product's name, explained"),
    "docs/guarantees.md": (r"(?:is|was) told|hears? of|heard of|hangs on", "names of tests"),
    "tests/architecture/": (r".*", "the lists themselves, and the rules' examples"),
}
"""Place: the words that it may have, and why."""


HEADLESS = re.compile(r"\W*(?:What|Who|Whoever|Whose)\b[^?]*")
"""A sentence that begins without a head, and asks nothing."""

UNNAMED_ACTOR = re.compile(r"\b(?:whoever|nobody|somebody|everybody)\b", re.IGNORECASE)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
CODE = re.compile(r"`[^`]*`")


def glossary(text: str) -> set[str]:
    """The words of the table below the heading."""
    return {row["word"] for row in GLOSSARY_ROW.finditer(text.split("\n## Words\n", 1)[1].split("\n## ", 1)[0])}


def spelled_out(name: str) -> str:
    """`LeaseRenewer` and `lease_renewer` as "lease renewer"."""
    return CAMEL.sub(" ", name).replace("_", " ").strip().lower()


def names(source: Source) -> Iterator[tuple[int, str]]:
    """Names and log events, with their lines."""
    for token in source.tokens:
        literal = token.string.strip("\"'")
        if token.type == tokenize.NAME or (token.type == tokenize.STRING and SNAKE.fullmatch(literal)):
            yield token.start[0], spelled_out(literal)


def retired_names(source: Source) -> Iterator[str]:
    """Retired words in the names and log events of a file, and in the file's own name."""
    words = IN_NAMES if source.path.startswith(("bench/", "tests/")) else IN_PRODUCT_NAMES
    yield from _found(source.path, [(1, spelled_out(source.module.replace(".", " ")))], words)
    if _may_have(source.text, words):
        yield from _found(source.path, names(source), words)


def retired_texts(path: str, text: str) -> Iterator[str]:
    """Retired words anywhere in a file."""
    is_plain = path.startswith(PLAIN) or path.rpartition("/")[0] in PLAIN_ALONE
    words = (*IN_TEXTS, *(IN_PLAIN_CODE if is_plain else IN_PLAIN_PROSE if path.endswith(".md") else ()))
    if not _may_have(text, words):
        return
    lines = ((number, spelled_out(line)) for number, line in enumerate(text.splitlines(), start=1))
    yield from _found(path, lines, words)


def headless_sentences(source: Source) -> Iterator[str]:
    """Sentences of docstrings and comments without a head, and those with an actor that has no name."""
    if not re.search(r"\b(?:What|Who\w*)\b", source.text) and not UNNAMED_ACTOR.search(source.text):
        return
    for line, text in _prose(source):
        for sentence in SENTENCE_END.split(CODE.sub("it", text)):
            if HEADLESS.fullmatch(sentence) or UNNAMED_ACTOR.search(sentence):
                yield f"{source.path}:{line}: say which event, row, caller or worker: {' '.join(sentence.split())[:80]}"


def _prose(source: Source) -> Iterator[tuple[int, str]]:
    """Docstrings, and comments, of which those on consecutive lines are one text."""
    for node in source.docstrings:
        if isinstance(node, ast.Constant):
            yield node.lineno, str(node.value)
    begun, ended, text = 0, 0, ""
    for token in source.tokens:
        if token.type == tokenize.COMMENT:
            line, said = token.start[0], token.string.lstrip("# ")
            if line != ended + 1:
                yield begun, text
                begun, text = line, ""
            ended, text = line, f"{text}\n{said}"
    yield begun, text


def _found(path: str, lines: Iterable[tuple[int, str]], words: tuple[Retired, ...]) -> Iterator[str]:
    allowed = [pattern for place, (pattern, _) in ALLOWED.items() if path.startswith(place)]
    for number, line in lines:
        for word, hits in _hits(line, words):
            if left := {hit for hit in hits if not any(re.fullmatch(pattern, hit) for pattern in allowed)}:
                yield f"{path}:{number}: {sorted(left)} was given up; say: {word.instead}"


def _may_have(text: str, words: tuple[Retired, ...]) -> bool:
    """Whether any of the words is in a text, be it in a name or not. Most files have none, and need no closer look."""
    return re.search("|".join(word.pattern for word in words), spelled_out(text)) is not None


@cache
def _hits(line: str, words: tuple[Retired, ...]) -> list[tuple[Retired, set[str]]]:
    """Which of the words are in a line, and in what form. Most names of the project are there many times."""
    found = ((word, {hit[0] for hit in re.finditer(word.pattern, line)}) for word in words)
    return [(word, hits) for word, hits in found if hits]


def _all_sources() -> tuple[Source, ...]:
    return (*product_sources(), *suite_sources(), *bench_sources())


def test_every_word_of_the_glossary_is_a_name_in_the_product() -> None:
    """README explains the words that the code speaks."""
    words = glossary((ROOT / "README.md").read_text(encoding="utf-8"))
    spoken = " | ".join({name for source in product_sources() for _, name in names(source)})
    assert len(words) > 20
    assert sorted(word for word in words if not re.search(rf"\b{word}\b", spoken)) == []


def test_retired_words_are_not_names() -> None:
    """No name, log event or file has one."""
    expect_none(finding for source in _all_sources() for finding in retired_names(source))


def test_retired_words_are_in_no_text() -> None:
    """No comment, docstring (the OpenAPI texts are some), script or document has one."""
    paths = [ROOT / source.path for source in _all_sources()] + documents() + sorted((ROOT / "shared").rglob("*.lua"))
    texts = ((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths)
    expect_none(finding for path, text in texts for finding in retired_texts(path, text))


def test_sentences_of_the_product_name_what_they_speak_of() -> None:
    """No sentence of a docstring or comment begins with a bare "What" or "Who", or speaks of nobody in particular."""
    launcher = [Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in LAUNCHER]
    expect_none(finding for source in (*product_sources(), *launcher) for finding in headless_sentences(source))
