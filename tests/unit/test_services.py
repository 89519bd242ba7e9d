"""What routes ask for by its type, and what the application has of each type."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from api import application
from api.dependencies import served
from api.dialects import DialectServices
from api.services import McpServices, PlainStores, Services

GROUPS = (Services, DialectServices, PlainStores, McpServices)


def declared() -> list[Any]:
    """The types of all services."""
    return [kind for group in GROUPS for kind in get_type_hints(group).values()]


def asked_for() -> Iterator[tuple[str, Any]]:
    """The services that modules of routes depend on, each with the module's name."""
    modules = {name for name in sys.modules if name.startswith("api.") and ".routes" in name}
    for name in sorted(modules):
        for alias in vars(sys.modules[name]).values():
            if get_origin(alias) is Annotated:
                kind, *found = get_args(alias)
                if served(kind) in found:
                    yield name, kind


def test_no_two_services_have_one_type() -> None:
    """A route that names the type would get either."""
    assert len(declared()) == len(set(declared()))


def test_every_service_that_a_route_asks_for_is_there() -> None:
    assert len(application.ROUTERS) > 20
    wanted = dict.fromkeys(asked_for())
    assert len(wanted) > 50
    have = set(declared())
    assert [(name, kind) for name, kind in wanted if kind not in have] == []
