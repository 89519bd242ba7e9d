"""Tools as a program writes them: tests send their source."""

import inspect


def roll_dice(num_sides: int) -> str:
    """
    Rolls one die.

    Args:
        num_sides (int): How many sides it has.

    Returns:
        str: What came up.
    """
    return str(num_sides)


def launch(target: str) -> str:
    """
    Launches something that cannot be called back.

    Args:
        target (str): Where it goes.
    """
    return target


ROLL_DICE = inspect.getsource(roll_dice)
LAUNCH = inspect.getsource(launch)
