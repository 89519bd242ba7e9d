"""Imports, and works out, what commands leave until they use it, so that no test pays for that in each process."""

from importlib import import_module

from api.application import ROUTERS
from api.direct_route import LateRoute

LATE = (
    "api.tool_source.docstrings",
    "cli.operator.database_upkeep",
    "cli.operator.database_upkeep",
    "cli.operator.database_upkeep",
    "cli.operator.dev_server",
    "cli.operator.doctor",
    "cli.operator.encrypted_secrets",
    "cli.operator.issued_keys",
    "cli.operator.database_upkeep",
    "cli.operator.worker_server",
    "shared.schema_validation",
    "shared.sql.schema_upgrade",
)

for _module in LATE:
    import_module(_module)
for _router in ROUTERS:
    for _route in _router.routes:
        if isinstance(_route, LateRoute):
            _route.read()
