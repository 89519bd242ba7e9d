"""Runs `holdfast dev`: the API and a worker in one process, with embedded services.

It is the only module that imports both.
"""

from api.access.callers import ConfiguredKeys
from api.main import serving
from cli.operator.api_server import refuse_if_open, serve_on
from cli.operator.processes import named_file, open_process
from shared.process.data_directory import DATABASE, only_process, own_keys
from shared.process.service_answers import bound_sockets
from shared.process.settings import Settings
from shared.redis.embedded import connect_embedded
from shared.sql.access.api_keys import ApiKeyStore
from shared.sql.engine import Database
from shared.sql.migrate import migrate
from worker.main import working

WHAT_NEXT = """
  every path, to try in a browser: {address}/docs
  a first program, and the same with curl: README.md; what the words mean: docs/concepts.md"""
"""`holdfast dev` prints this after its address."""


async def run_dev(settings: Settings, *, host: str, port: int) -> None:
    configured = ConfiguredKeys.parse(settings.api_keys.get_secret_value(), settings.api_keys_file)
    file = settings.data_dir / DATABASE
    if not file.exists():
        refuse_if_open(host, has_keys=bool(configured))  # before the data directory is made
    # These defaults suit a person at a terminal: models without a key, an immediate end, and no log line for each
    # request that an open console sends.
    defaults: dict[str, object] = {"builtin_models": True, "drain_s": 0.0, "docs": "on", "access_log": False}
    chosen = settings.model_fields_set
    settings = settings.model_copy(update={name: value for name, value in defaults.items() if name not in chosen})
    with bound_sockets(host, port) as sockets, only_process(settings.data_dir):
        async with named_file(file):
            database = Database(f"sqlite:///{file}")
        redis, keys = connect_embedded(stores_first=True), own_keys(settings)
        async with open_process(settings, database, redis, keys, is_embedded=True) as process:
            async with named_file(file):
                await migrate(database)
            refuse_if_open(host, has_keys=bool(configured) or await ApiKeyStore(database).has_any())
            async with working(process, alone=True), serving(process) as app:
                await serve_on(app, settings, f"http://{host}:{port}", sockets, WHAT_NEXT)
