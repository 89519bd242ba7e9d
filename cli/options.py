"""Options that many commands have, and the shapes of their values."""

from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]

MOST_DAYS = 36_500


def days_at_most(text: str) -> int:
    """A number of days, of a hundred years at most; raises what the command line says otherwise."""
    number = positive(text)
    if number > MOST_DAYS:
        raise typer.BadParameter(f"must be at most {MOST_DAYS}")
    return number


def positive(text: str) -> int:
    """A number from 1 on; raises what the command line says otherwise."""
    try:
        number = int(text)
    except ValueError:
        raise typer.BadParameter("write it as a number, such as 10") from None
    if number < 1:
        raise typer.BadParameter("must be at least 1")
    return number
