"""The command line of `holdfast keys`. The implementation is imported after the settings were read, so that a wrong
setting is reported at once.
"""

from datetime import timedelta
from typing import Annotated

import typer

from cli.operator.start import execute, read_settings, ready_settings, require_database
from cli.printable import MOST_DAYS, JsonOption
from shared.domain.api_keys import DEFAULT_GRACE_S, LONGEST_GRACE_S
from shared.domain.errors import InvalidRequest
from shared.domain.ids import KeyId, ProjectId
from shared.process.importing import without_collections

commands = typer.Typer(add_completion=False, help="Make, list, rotate, revoke API keys. Needs HOLDFAST_DATABASE_URL.")

KeyArgument = Annotated[str, typer.Argument(help="The id of the key: key-…")]


def _project_of(name: str) -> ProjectId:
    if not name.strip() or not name.isprintable():
        raise InvalidRequest("--project is empty or has a character that cannot be printed: give a printable name")
    return ProjectId(name.strip())


@commands.command(epilog="Example: KEY=$(holdfast keys create --name backend --scope write)")
def create(
    name: Annotated[str, typer.Option(help="A name that says who uses the key.")],
    project: Annotated[str, typer.Option(help="The project that the key gives access to.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="read, write or admin; agent:<id> limits the key to that agent; may be repeated (default: write)."
        ),
    ] = None,
    expires_in_days: Annotated[
        int | None, typer.Option(min=1, max=MOST_DAYS, metavar="N", help="Days until it expires (default: never).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key, and print its secret: it is shown once."""
    project_id = _project_of(project)
    settings = ready_settings()
    require_database(settings)
    with without_collections():
        from cli.operator.issued_keys import create_key
    lasts = None if expires_in_days is None else timedelta(days=expires_in_days)
    scopes = scope or ["write"]
    execute(create_key(settings, project_id, name, scopes=scopes, lasts=lasts, as_json=as_json))


@commands.command("list", epilog="Example: holdfast keys list --project default --json")
def list_keys(
    project: Annotated[str | None, typer.Option(help="Only of this project (default: all).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the keys, without their secrets."""
    settings = ready_settings()
    require_database(settings)
    with without_collections():
        from cli.operator.issued_keys import show_keys
    execute(show_keys(settings, project=project, as_json=as_json))


@commands.command(epilog="Example: holdfast keys revoke key-0b0f3a4e-93a5-4a7a-8d5c-1c5a4f6f1a2b")
def revoke(key: KeyArgument, as_json: JsonOption = False) -> None:
    """Revoke a key. Every API process refuses it within five seconds."""
    settings = ready_settings()
    require_database(settings)
    with without_collections():
        from cli.operator.issued_keys import revoke_key
    execute(revoke_key(settings, key_id=KeyId(key), as_json=as_json))


@commands.command(epilog="Example: holdfast keys rotate key-0b0f3a4e-93a5-4a7a-8d5c-1c5a4f6f1a2b --grace 3600")
def rotate(
    key: KeyArgument,
    grace: Annotated[
        int,
        typer.Option(
            min=0,
            max=LONGEST_GRACE_S,
            metavar="SECONDS",
            help="How long the old secret stays valid; 0 ends it at once. The default is a day.",
        ),
    ] = DEFAULT_GRACE_S,
    as_json: JsonOption = False,
) -> None:
    """Give a key a new secret, and print it: it is shown once."""
    settings = ready_settings()
    require_database(settings)
    with without_collections():
        from cli.operator.issued_keys import rotate_key
    execute(rotate_key(settings, key_id=KeyId(key), grace=grace, as_json=as_json))


@commands.command("callback-secret", epilog="Example: holdfast keys callback-secret --project default")
def callback_secret(
    project: Annotated[str, typer.Option(help="The project whose callbacks the secret signs.")] = "default",
    as_json: JsonOption = False,
) -> None:
    """Print the secret with which a project's receivers verify callbacks. Needs only HOLDFAST_CALLBACK_SECRET."""
    project_id = _project_of(project)
    settings = read_settings()
    if not settings.callback_secret.get_secret_value():  # before the imports, which take a second
        raise InvalidRequest("HOLDFAST_CALLBACK_SECRET is not set: callbacks are not signed")
    from cli.operator.issued_keys import callback_secret_of

    print(callback_secret_of(settings, project_id, as_json=as_json))
