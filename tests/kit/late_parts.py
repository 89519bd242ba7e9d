"""Imports and computes in advance the parts that commands load on first use, so that no test process pays for them."""

from importlib import import_module

from api.application import ROUTERS
from api.direct_route import LateRoute

LATE = (
    "alembic.command",
    "alembic.config",
    "api.tool_source.docstrings",
    "asyncpg",
    "cli.operator.database_maintenance",
    "cli.operator.dev_server",
    "cli.operator.doctor",
    "cli.operator.database_maintenance",
    "cli.operator.issued_keys",
    "cli.operator.worker_server",
    "encodings.idna",
    "shared.schema_validation",
    "typer._adapters",
    "typer._click.decorators",
    "uvicorn.lifespan.off",
)

for _module in LATE:
    import_module(_module)
for _router in ROUTERS:
    for _route in _router.routes:
        if isinstance(_route, LateRoute):
            _route.read()
