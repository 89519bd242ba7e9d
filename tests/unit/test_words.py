"""Texts are cut into words alike, in any script."""

import pytest

from shared.domain.searches import LONGEST_WORD, phrases_of, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("?! -- ...", []),
        ("It's 3.14, snake_case", ["it", "s", "3", "14", "snake", "case"]),
        ("STRASSE Straße", ["strasse", "strasse"]),
        ("Café CAFE\u0301", ["cafe", "cafe"]),
        ("\uff26\uff55\uff4c\uff4c\u3000width", ["full", "width"]),
        ("हिन्दी", ["हिन्दी"]),
        ("한국어 말", ["한국어", "말"]),
        ("Python日本", ["python", "日", "本"]),
        ("\U0001f389x\U0001f389", ["x"]),
        ("a\ud800b", ["a", "b"]),
        ("y" * 300, ["y" * LONGEST_WORD]),
    ],
)
def test_words_are_folded_letters_marks_and_digits(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_a_run_without_spaces_is_one_phrase() -> None:
    assert phrases_of("the 首都 of 日本") == [["the"], ["首", "都"], ["of"], ["日", "本"]]
