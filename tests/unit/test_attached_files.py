"""Files in messages: what releases that know none read, and what they count for."""

import msgspec

from shared.domain.messages import AttachedFile, ContentPart, Message, TextContent, UserMessage
from tests.kit.model_server.model_calls import history
from worker.bodies.answer import TOKENS_AROUND, body_tokens, text_tokens
from worker.bodies.summary import NO_FILE, SHORTEST_TEXT, truncated

NOTE = "[file a.pdf, 75,000 bytes]"
PDF = TextContent(NOTE, AttachedFile("a.pdf", "application/pdf", "A" * 100_000))


class _OlderText(msgspec.Struct, tag="text"):
    """A text as releases have it that know no files."""

    text: str


def test_a_release_that_knows_no_files_reads_the_note() -> None:
    assert msgspec.json.decode(msgspec.json.encode(PDF), type=_OlderText).text == NOTE
    assert msgspec.json.encode(TextContent("Hi.")) == b'{"type":"text","text":"Hi."}'
    newer = b'{"type":"text","text":"Hi.","file":{"name":"a","media_type":"b","pages":3}}'
    decoder: msgspec.json.Decoder[ContentPart] = msgspec.json.Decoder(ContentPart)
    assert decoder.decode(newer) == TextContent("Hi.", AttachedFile("a", "b"))


def _shown(messages: list[Message], longest: int) -> object:
    [shown] = truncated(messages, longest)
    return shown.body


def test_a_file_counts_and_leaves_a_window_that_is_too_small() -> None:
    body = UserMessage([PDF])
    assert body_tokens(body) == TOKENS_AROUND + text_tokens(NOTE) + 4_000
    assert _shown(history(body), SHORTEST_TEXT + 1) == body
    assert _shown(history(body), SHORTEST_TEXT) == UserMessage([TextContent(NO_FILE)])
