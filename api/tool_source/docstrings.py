"""A docstring's description of its function and of each parameter: Google, NumPy and Sphinx style."""

import re

import griffe
import msgspec

from shared.domain.errors import InvalidToolSource

MAX_DOCSTRING_CHARS = 20_000
NUMPY_HEADING = re.compile(
    r"^[ \t]*(Other )?(Parameters|Returns|Raises|Yields)[ \t]*\n[ \t]*-{3,}[ \t]*$", re.MULTILINE
)
GOOGLE_HEADING = re.compile(
    r"(?<=[^\n])\n(?=(?:Args|Arguments|Parameters|Params|(?:Keyword|Other) (?:Args|Arguments|Parameters)|Returns|Raises"
    r"|Yields|Examples?|Attributes|Notes?|Warnings?|Warns):[ \t]*\n)"
)
"""The end of a line before a heading without a blank line: common, but griffe finds no section there."""
SPHINX_FIELD = re.compile(
    r"^[ \t]*:(param|parameter|arg|argument|key|return|returns|raises|rtype|type)\b", re.MULTILINE
)


class Documentation(msgspec.Struct, frozen=True):
    """A parsed docstring."""

    text: str
    """The docstring without the lists of parameters, results and exceptions."""
    parameters: dict[str, str]


def read_docstring(docstring: str) -> Documentation:
    """Parses a docstring, in the style of its headings."""
    if len(docstring) > MAX_DOCSTRING_CHARS:
        raise InvalidToolSource(
            f"The docstring has {len(docstring)} characters, {MAX_DOCSTRING_CHARS} are allowed: shorten it."
        )
    text: list[str] = []
    parameters: dict[str, str] = {}
    for section in _sections(docstring):
        match section:
            case griffe.DocstringSectionText():
                text.append(section.value)
            case griffe.DocstringSectionParameters() | griffe.DocstringSectionOtherParameters():
                parameters.update({entry.name.lstrip("*"): entry.description.strip() for entry in section.value})
            case griffe.DocstringSectionAdmonition():
                text.append(f"{section.title}:\n{section.value.description}")
            case griffe.DocstringSectionExamples():
                text.append("\n".join(["Examples:", *(example for _, example in section.value)]))
            case _:
                continue
    return Documentation(text="\n\n".join(text).strip(), parameters=parameters)


def _sections(docstring: str) -> list[griffe.DocstringSection]:
    parsed = griffe.Docstring(docstring)
    if SPHINX_FIELD.search(docstring):
        return griffe.parse_sphinx(parsed, warnings=False)
    if NUMPY_HEADING.search(docstring):
        return griffe.parse_numpy(parsed, warnings=False)
    return griffe.parse_google(griffe.Docstring(GOOGLE_HEADING.sub("\n\n", docstring)), warnings=False)
