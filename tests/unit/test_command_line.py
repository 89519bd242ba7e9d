"""What the command line says to those who got it wrong: one line that names what to change."""

import os
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-c", "from api.cli import main; main()"]


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        (["worker"], {"HOLDFAST_MAX_RUNS": "many"}, "HOLDFAST_MAX_RUNS"),
        (["worker"], {}, "HOLDFAST_DATABASE_URL is not set"),
        (["migrate"], {"HOLDFAST_DATABASE_URL": "mysql://host/db"}, "postgresql://"),
        (["dev", "--host", "0.0.0.0"], {}, "HOLDFAST_API_KEYS"),  # noqa: S104 - refused, and that is the point
        (["api"], {"HOLDFAST_API_KEYS": ""}, "HOLDFAST_API_KEYS is set and empty"),
        (["api"], {"HOLDFAST_API_KEYS": " , ,"}, "no key is in it"),
        (["dev", "--host", "127.0.0.2"], {"HOLDFAST_API_KEYS": ""}, "without API keys"),
        (["dev", "--host", "127.0.0.2"], {"HOLDFAST_API_KEYS": ","}, "no key is in it"),
        (["api"], {"HOLDFAST_API_KEYS": "nonsense"}, "entry 1: write it as project=key"),
        (["dev"], {"HOLDFAST_REDIS_URL": "redis://127.0.0.1:6379/0"}, "holdfast worker"),
    ],
)
def test_a_wrong_start_is_refused_in_one_line(arguments: list[str], environment: dict[str, str], named: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}

    ended = subprocess.run(
        [*COMMAND, *arguments], env=clean | environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 1
    assert ended.stderr.startswith("holdfast: ")
    assert named in ended.stderr
    assert ended.stderr.count("\n") == 1
