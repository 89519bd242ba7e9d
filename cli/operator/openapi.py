"""`holdfast openapi`: the document of the API, for programs that are generated from it."""

import json

import typer

from api.application import openapi_document

commands = typer.Typer()


@commands.command(epilog="Example: holdfast openapi > openapi.json")
def openapi() -> None:
    """Print the OpenAPI document of this version: of every request, answer, stream and error."""
    print(json.dumps(openapi_document(), indent=1, ensure_ascii=False))
