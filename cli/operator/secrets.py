"""The command line of `holdfast secrets`. The implementation is imported after the settings were read, so that a wrong
setting is reported at once.
"""

from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from cli.operator.start import operate, read_settings, require_database
from cli.printable import JsonOption
from shared.domain.errors import InvalidRequest
from shared.process.settings import Settings

commands = typer.Typer(add_completion=False, help="Make a key for agents' secrets, or re-encrypt all of them.")


@commands.command("generate-key", epilog='Example: export HOLDFAST_ENCRYPTION_KEY="$(holdfast secrets generate-key)"')
def generate_key() -> None:
    """Print a new key for HOLDFAST_ENCRYPTION_KEY."""
    read_settings()
    from cli.operator.encrypted_secrets import print_new_key

    print_new_key()


@commands.command(epilog="Example: holdfast secrets rotate --dry-run")
def rotate(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which keys are in use; change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Encrypt all secrets with the first key of HOLDFAST_ENCRYPTION_KEY."""

    def begin(settings: Settings) -> Coroutine[Any, Any, None]:
        if not (settings.encryption_key.get_secret_value() or settings.encryption_key_file):
            raise InvalidRequest("HOLDFAST_ENCRYPTION_KEY is not set: `holdfast secrets generate-key` prints a key")
        require_database(settings)
        from cli.operator.encrypted_secrets import rotate_secrets

        return rotate_secrets(settings, dry_run=dry_run, as_json=as_json)

    operate(begin)
