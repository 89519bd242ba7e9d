"""Every command says what it does, with an example; and asking for help does not load the server."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.command_table import COMMANDS, loaded
from cli.main import main
from tests.kit.commands import HOLDFAST, Command, execute
from tests.kit.wait_until import wait_until

SERVER = ("fastapi", "sqlalchemy", "redis", "pydantic_settings")


def _paths() -> list[list[str]]:
    """The words of every command."""
    found: list[list[str]] = []
    for name in COMMANDS:
        inner: dict[str, Any] = getattr(loaded(name), "commands", {})
        found += [[name, word] for word in inner] or [[name]]
    return found


@pytest.mark.parametrize("words", _paths(), ids=" ".join)
def test_help_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([*words, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    example = shown.partition("Example: ")[2]
    assert re.search(rf"holdfast {' '.join(words)}\b", example), shown


def test_the_example_of_all_commands_was_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the example of its command, with all that this needs."""
    main(["--help"])
    example = " ".join(capsys.readouterr().out.split()).partition("Example: ")[2]
    main([*example.split()[1:3], "--help"])
    assert f"Example: {example}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_single_command_offered_to_install_the_completion_of_all(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([name, "--help"])
    assert "completion" not in capsys.readouterr().out


TALKERS = [["chat"], ["dev"], ["api"], ["worker"], ["openapi"], ["secrets", "generate-key"]]
"""Commands that talk with a person, that run until they are ended, that print one word or are JSON anyway."""


@pytest.mark.parametrize("words", [words for words in _paths() if words not in TALKERS], ids=" ".join)
def test_every_answer_can_be_had_as_json(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([*words, "--help"])
    assert "--json" in capsys.readouterr().out


def test_all_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if f" {name} " not in shown] == []
    main(["--version"])
    assert capsys.readouterr().out.startswith("holdfast ")


@pytest.mark.parametrize("arguments", ["'--help'", "'runs', 'list', '--help'"])
async def test_a_caller_does_not_wait_for_the_server_s_imports(tmp_path: Path, arguments: str) -> None:
    program = (
        f"import sys; from cli.main import main; main([{arguments}]); "
        f"found = [name for name in {SERVER} if name in sys.modules]; assert not found, found"
    )
    files = tmp_path / "output", tmp_path / "errors"
    process = execute(Command([], {}, *files), program)
    await wait_until(lambda: process.exit_status() is not None, description="the help to be shown")
    assert process.exit_status() == 0, files[1].read_text()


@pytest.mark.parametrize(
    ("redirected", "statuses", "said"),
    [
        (">/dev/full", (1,), "holdfast: the output cannot be written: No space left on device\n"),
        ("<&- >&- ", (0, 1), ""),  # 1: the machine has a flaw
        ("<&- >&- 2>&-", (0, 1), ""),
    ],
)
@pytest.mark.parametrize("arguments", ["--version", "--help", "doctor --json"])
def test_a_full_disk_or_a_closed_stream_was_a_traceback_or_an_abort(
    arguments: str, redirected: str, statuses: tuple[int, ...], said: str
) -> None:
    command = f'exec "{sys.executable}" -c "{HOLDFAST}" {arguments} {redirected}'
    ended = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode in statuses
    assert ended.stderr == said
