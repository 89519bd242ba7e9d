"""What of a search for words is left to the database, which is quick, and finds the same."""

import msgspec
import pytest

from shared.domain.messages import AssistantMessage
from shared.domain.searches import has_words, plain_parts

PARTS: dict[str, list[str]] = {
    "printer": ["printer"],
    'say "hello"': ["say", "hello"],
    "back\\slash": ["back", "slash"],
    "naïve": ["na", "ve"],
    "привет": [],
    "日本語": ["日本語"],
    "第7号": ["第7号"],
    "مرحبا": ["مرحبا"],
}


@pytest.mark.parametrize("word", PARTS)
def test_a_search_in_a_script_without_case_read_every_message(word: str) -> None:
    """Nothing of such a word was left to the database: 100,000 messages took half a minute."""
    parts = plain_parts(word)
    said = AssistantMessage(text=f"before{word.upper()}behind")

    assert parts == PARTS[word]
    assert has_words(said, [word], {"assistant"})
    stored = msgspec.json.encode(said).decode().casefold()
    assert all(part.casefold() in stored for part in parts)
