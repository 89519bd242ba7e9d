"""What of an answer's text is new to readers, when another worker has shown its beginning."""

import pytest

from worker.models.provider import LEAST_REPEATED, ContinuedText

SHOWN = "The cat sat on the mat and"
assert len(SHOWN) >= LEAST_REPEATED


def new(shown: str, *pieces: str) -> str:
    """What readers get beyond what they have."""
    text = ContinuedText(shown)
    return "".join([*map(text.more, pieces), text.rest()])


@pytest.mark.parametrize(
    ("shown", "pieces", "rest"),
    [
        (SHOWN, (" ", "slept."), " slept."),
        (SHOWN, (SHOWN + " slept.",), " slept."),
        (SHOWN, ("The cat ", "sat on the mat", " and", " slept."), " slept."),
        (SHOWN, ("The cat ", "sat on the mat", " and"), ""),
        (SHOWN, ("The cat ", "ran."), "The cat ran."),
        (SHOWN, ("The cat",), "The cat"),
        (SHOWN, (), ""),
        ("ha ", ("ha ", "ha"), "ha ha"),
        ("One,", (" two",), " two"),
    ],
    ids=[
        "it goes on",
        "it is repeated at once",
        "it is repeated in pieces",
        "it is repeated and was whole",
        "it only begins alike",
        "it ends where it begins alike",
        "it was whole",
        "too short to be a repetition",
        "short",
    ],
)
def test_nothing_is_said_twice(shown: str, pieces: tuple[str, ...], rest: str) -> None:
    assert new(shown, *pieces) == rest


def test_the_white_space_that_the_model_is_not_given_is_not_said_twice() -> None:
    shown = f"{SHOWN} "
    assert ContinuedText(shown).asked == SHOWN
    assert new(shown, " slept.") == "slept."
    assert new(shown, "slept.") == "slept."
    assert new(shown, f"{SHOWN} ", "slept.") == "slept."
    assert new(shown, SHOWN) == "", "it repeats what it was given, and was whole"
