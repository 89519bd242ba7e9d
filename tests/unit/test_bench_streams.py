"""The bench finds tokens that are lost, doubled or out of order, however the bytes were cut."""

import json

import pytest

from bench.client import Client, Watched, WatchedResponse
from bench.model import tokens

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
PORT = 1
"""Nothing is connected."""


def frames(*numbers: int) -> bytes:
    """Events of these tokens, written by the model at nanosecond 1,000,000,000."""
    shown = (
        b'id: %d\ndata: {"run_id":"run-7","content":"@1000000000#%d "}\n\n' % (seq, number)
        for seq, number in enumerate(numbers, start=1)
    )
    return b"\r\n" + b"".join(shown)


def watched(*reads: bytes, expected: int = 0) -> Watched:
    """A stream that was read in these pieces."""
    stream = Watched(0.0, expected=expected)
    for read in reads:
        stream.take(read)
    return stream


def test_a_whole_stream_has_no_fault() -> None:
    stream = watched(HEAD, frames(0, 1, 2), b"id: 4\ndata: [DONE]\n\n")
    assert stream.fault(3) == ""
    assert (stream.status, stream.run_id, stream.last_seq, bool(stream.ended_at)) == (200, "run-7", 4, True)


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [
        ((0, 1), "2 tokens arrived of 3"),
        ((0, 2), "token 2 came where 1 was due"),
        ((0, 2, 1), "token 2 came where 1 was due"),
        ((0, 1, 1), "token 1 came where 2 was due"),
        ((1, 2, 3), "token 1 came where 0 was due"),
        ((), "0 tokens arrived of 3"),
    ],
)
def test_a_lost_or_doubled_or_early_token_is_a_fault(numbers: tuple[int, ...], fault: str) -> None:
    client = Client(PORT)
    client.check(watched(HEAD, frames(*numbers)), 3)
    assert [found.partition(": ")[2] for found in client.faults] == [fault]


def test_tokens_are_found_once_wherever_the_reads_were_cut() -> None:
    text = HEAD + frames(0, 1, 2)
    for cut in range(1, len(text)):
        stream = watched(text[:cut], text[cut:])
        assert stream.fault(3) == "", cut
        assert (stream.run_id, stream.last_seq) == ("run-7", 3), cut


def response(*numbers: int) -> bytes:
    """The events of a response with these tokens, which has its whole text once more at the end."""
    told = [b"@1000000000#%d " % number for number in numbers]
    deltas = (b'event: response.output_text.delta\ndata: {"delta":"%b"}\n\n' % one for one in told)
    whole = b"".join(told)
    ends = (b'event: response.output_text.done\ndata: {"text":"%b"}\n\n', b'event: response.completed\ndata: "%b"\n\n')
    return b"\r\n" + b"".join(deltas) + b"".join(end % whole for end in ends) + b"data: [DONE]\n\n"


def test_the_whole_text_at_the_end_of_a_response_is_no_second_token_wherever_the_reads_were_cut() -> None:
    text = HEAD + response(0, 1, 2)
    for cut in range(1, len(text)):
        stream = WatchedResponse(0.0)
        stream.take(text[:cut])
        stream.take(text[cut:])
        assert (stream.fault(3), bool(stream.ended_at)) == ("", True), cut
    lossy = WatchedResponse(0.0)
    lossy.take(HEAD + response(0, 2))
    assert "token 2 came where 1 was due" in lossy.fault(3)


def test_a_stream_that_is_joined_in_the_middle_may_begin_with_any_token() -> None:
    client = Client(PORT)
    client.check_end(watched(HEAD, frames(4, 5, 6), expected=-1), 7)
    assert client.faults == []


@pytest.mark.parametrize("numbers", [(4, 6), (4, 5)])
def test_a_stream_that_is_joined_in_the_middle_must_have_the_rest(numbers: tuple[int, ...]) -> None:
    client = Client(PORT)
    client.check_end(watched(HEAD, frames(*numbers), expected=-1), 7)
    assert len(client.faults) == 1


def test_the_models_tokens_are_what_the_client_looks_for() -> None:
    stream = watched(HEAD, tokens(0, 2, 1_000_000_000), tokens(2, 5, 1_000_000_000))
    assert stream.fault(5) == ""
    size, _, chunk = tokens(0, 2, 1_000_000_000).partition(b"\r\n")
    assert int(size, 16) == len(chunk) - len(b"\r\n")
    first = json.loads(chunk.partition(b"\n\n")[0].removeprefix(b"data: "))
    assert first["choices"][0]["delta"]["content"] == "@1000000000#0 "
