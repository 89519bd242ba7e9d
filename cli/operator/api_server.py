"""Runs the server of `holdfast api`, and renders its OpenAPI document."""

import json
from functools import partial
from socket import socket

from fastapi import FastAPI

from api.access.callers import ConfiguredKeys
from api.application import openapi_document
from api.connection_rules import ConnectionRules
from api.gate import LOOPBACK_NAMES
from api.http_server import serve
from api.main import serving
from cli.operator.processes import production_process
from cli.operator.start import announce
from shared.domain.errors import InvalidRequest
from shared.process.service_answers import bound_sockets
from shared.process.settings import Settings
from shared.sql.access.api_keys import ApiKeyStore


async def run_api(settings: Settings, *, host: str, port: int) -> None:
    configured = ConfiguredKeys.parse(settings.api_keys.get_secret_value(), settings.api_keys_file)
    if not configured and "api_keys" in settings.model_fields_set:
        raise InvalidRequest(
            "HOLDFAST_API_KEYS is set and empty: set it to project=key, or unset it to serve this machine without a key"
        )
    with bound_sockets(host, port) as sockets:
        async with production_process(settings) as process:
            has_keys = bool(configured) or await ApiKeyStore(process.database).has_any()
            refuse_if_open(host, has_keys=has_keys)
            async with serving(process) as app:
                await serve_on(app, settings, f"http://{host}:{port}", sockets)


def document() -> str:
    """Returns the OpenAPI document as JSON."""
    return json.dumps(openapi_document(), indent=1, ensure_ascii=False)


def refuse_if_open(host: str, *, has_keys: bool) -> None:
    """Raises `InvalidRequest` if the server would be open to the network without any key."""
    if not has_keys and host not in LOOPBACK_NAMES:
        raise InvalidRequest(
            f"refusing to listen on {host} without API keys: set HOLDFAST_API_KEYS=project=key, make a key with "
            "`holdfast keys create`, or use --host 127.0.0.1"
        )


async def serve_on(app: FastAPI, settings: Settings, address: str, sockets: list[socket], hints: str = "") -> None:
    console = f"{address}/console"
    said = f"holdfast: {address} (console: {console}){hints.format(address=address)}"
    rules = ConnectionRules(settings.request_timeout, settings.reader_timeout, settings.max_connections)
    announced = partial(announce, settings, "api_listens", said, address=address, console=console)
    await serve(app, sockets, rules, on_listening=announced)
