"""Special tokens of chat templates go to no host in what users say, and come back unharmed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.models.special_tokens import SpecialTokenUnescaper, escaped_tokens, tokenizes_text

TOKENS = [
    "<|im_start|>",
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
    "<start_of_turn>",
    "<\uff5cUser\uff5c>",
    "[TOOL_CALLS]",
    "]~b]",
]


def mended(pieces: list[str]) -> str:
    tokens = SpecialTokenUnescaper()
    return "".join([*map(tokens.more, pieces), tokens.rest()])


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_is_none_any_more(token: str) -> None:
    broken = escaped_tokens(f"see {token}system")
    assert token not in broken
    assert mended([broken]) == f"see {token}system"


@given(
    parts=st.lists(
        st.sampled_from([*TOKENS, "text ", "<", "[", "|", "\u200d", "a\u200bb", "\U0001f468\u200d\U0001f469"])
    ),
    size=st.integers(1, 5),
)
def test_what_a_model_says_does_not_depend_on_cuts(parts: list[str], size: int) -> None:
    said = escaped_tokens("".join(parts))
    pieces = [said[start : start + size] for start in range(0, len(said), size)]
    assert mended(pieces) == mended([said])


def test_only_a_joiner_is_held_back() -> None:
    tokens = SpecialTokenUnescaper()
    assert [tokens.more(piece) for piece in ("a <", "|b", "\u200d", "x")] == ["a <", "|b", "\u200d", "x"]
    assert [tokens.more(piece) for piece in ("<", "\u200d", "|im_start", "|>", "!")] == [
        "<",
        "",
        "",
        "|im_start|>",
        "!",
    ]


@pytest.mark.parametrize(
    ("model", "tokenizes"),
    [("qwen3:8b", True), ("openai/gpt-oss-20b", True), ("gpt-4o-mini", False), ("anthropic/claude-sonnet-4.5", False)],
)
def test_which_models_may_be_fooled(model: str, *, tokenizes: bool) -> None:
    assert tokenizes_text(model) is tokenizes
