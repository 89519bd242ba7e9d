"""Rule 11: `except Exception` at five kinds of boundary, in named places; each logs and decides what happens next.

Anywhere else it hides a bug as a behaviour. A handler whose last line is a bare `raise` only cleans up, so it is free.
"""

import ast
from collections.abc import Iterator

from tests.kit.project.source_tree import Source, dotted_name, expect_none, product_sources

NAMED_PLACES: dict[tuple[str, str], str] = {
    (
        "worker/run/execute_run.py",
        "RunExecutor._outcome_of",
    ): "the job: whatever a run does, it ends and its worker goes on",
    (
        "worker/run/observation.py",
        "RunObservation._tell",
    ): "an observer: who measures a run must not end it",
    (
        "shared/mcp/connection.py",
        "Connection.run",
    ): "a background loop: whatever ends a connection to an MCP server, those who wait for it are told",
    ("shared/mcp/connection.py", "_outcome"): "the tool: whatever a request to an MCP server raises is its outcome",
    ("shared/concurrency.py", "_repeat"): "a background loop: the next round may find things better",
    (
        "shared/redis/connection.py",
        "ChannelListener._hand_on",
    ): "a background loop: what somebody publishes must not end those who listen",
    (
        "api/callbacks/delivery.py",
        "CallbackDelivery._deliver_in",
    ): "a background loop: one callback that cannot be settled must not end the others",
    (
        "worker/agents/models/endpoint.py",
        "ModelEndpoint._serve_one",
    ): "a background loop: a request that breaks its connection must not end the runs of others",
    ("worker/tools/guest/child_call.py", "attempt"): "the tool: whatever foreign code raises is its answer",
    ("worker/tools/guest/child_program.py", "run_code"): "the tool: whatever a program raises is its answer",
    ("api/http_exchange.py", "Exchange.run"): "the API's last resort: a 500, or an answer that is broken off",
    ("worker/tools/guest/child_program.py", "finished"): "the tool: the same, of a program that awaits",
    (
        "worker/tools/guest/child_zygote.py",
        "Zygote._fork",
    ): "the tool: a failed fork must not become a second zygote",
    ("worker/tools/guest/child_zygote.py", "main"): "the tool: what ends a zygote is read by its worker",
}
"""(file, function) and why it may: the boundary that it is, and what follows."""

BOUNDARIES = {"the job", "an observer", "a background loop", "the tool", "the API's last resort"}

BROAD = frozenset({"Exception", "BaseException", "builtins.Exception", "builtins.BaseException"})


def broad_excepts(source: Source) -> Iterator[tuple[str, str, int]]:
    """File, function and line of each place that catches everything."""
    within = source.within
    for node in source.nodes:
        match node:
            case ast.ExceptHandler(type=caught, body=body) if _is_broad(caught) and not _only_cleans_up(body):
                yield source.path, within.get(node, "the module"), node.lineno
            case ast.Call(args=kinds) if dotted_name(node.func).endswith("suppress") and any(map(_is_broad, kinds)):
                yield source.path, within.get(node, "the module"), node.lineno
            case _:
                pass


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(dotted_name(kind) in BROAD for kind in kinds)


def _only_cleans_up(body: list[ast.stmt]) -> bool:
    last = body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_everything_is_caught_in_the_named_places_only() -> None:
    """No other function catches Exception or BaseException."""
    found = [place for source in product_sources() for place in broad_excepts(source)]
    expect_none(
        f"{path}:{line}: {function} catches everything; name what can fail here"
        for path, function, line in found
        if (path, function) not in NAMED_PLACES
    )


def test_the_named_places_exist() -> None:
    """Each is a boundary of one of the five kinds, and still catches something: the list cannot go stale."""
    found = {(path, function) for source in product_sources() for path, function, _ in broad_excepts(source)}
    expect_none(f"{path}: {function} no longer catches everything" for path, function in NAMED_PLACES.keys() - found)
    assert {reason.partition(":")[0] for reason in NAMED_PLACES.values()} <= BOUNDARIES
