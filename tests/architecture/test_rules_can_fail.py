"""A rule that cannot fail holds nothing: each one is shown code that breaks it, and code that only looks like it."""

from collections.abc import Callable, Iterable
from textwrap import dedent

import pytest

from tests.architecture.test_broad_excepts import broad_excepts
from tests.architecture.test_comments import notes, silenced_types, unexplained_lints
from tests.architecture.test_commits import own_transactions
from tests.architecture.test_constructors import environment_at_import, module_instances, settings_elsewhere
from tests.architecture.test_corridors import lonely_modules, walls_broken, wire_names
from tests.architecture.test_glossary import headless_sentences, retired_names, retired_texts
from tests.architecture.test_imports import cycles, late_imports, strangers, wrong_directions
from tests.architecture.test_keys import keys_in_lua, spelled_keys
from tests.architecture.test_names import gerunds, vague_names
from tests.architecture.test_projects import unscoped_questions
from tests.architecture.test_sizes import deep_blocks, long_files, long_functions
from tests.architecture.test_status_writes import assigned_statuses, copied_statuses, updated_statuses
from tests.architecture.test_tasks import bare_tasks, swallowed_cancellations
from tests.architecture.test_tests import emptied_servers, replaced_classes, sleeps, unclosed_servers
from tests.kit.project.source_tree import Source

Rule = Callable[[Source], Iterable[object]]

FOUR_DEEP = """\
def f(a):
    if a:
        for b in a:
            with b:
                try:
                    b()
                finally:
                    pass
"""
THREE_DEEP = """\
def f(a):
    if a:
        pass
    elif a:
        for b in a:
            with b:
                b()
"""

BREAKING: list[tuple[Rule, str, str]] = [
    (long_functions, "api/x.py", "def f():\n" + "    a = 1\n" * 59),
    (deep_blocks, "worker/x.py", FOUR_DEEP),
    (wrong_directions, "api/x.py", "from worker.execute_run import execute_run"),
    (wrong_directions, "worker/x.py", "def f():\n    import api.main"),
    (wrong_directions, "shared/sql/x.py", "from api import sse"),
    (wrong_directions, "shared/x.py", "from ..worker import main"),
    (wrong_directions, "api/x.py", "from tests.kit import wait_until"),
    (strangers, "api/x.py", "import sqlalchemy as sa"),
    (strangers, "api/x.py", "from redis.asyncio import Redis"),
    (strangers, "worker/bodies/step_loop.py", "import pydantic_ai"),
    (strangers, "worker/tools/x.py", "import pickle"),
    (strangers, "shared/redis/event_log.py", "from arq.connections import ArqRedis"),
    (strangers, "worker/queue/leases.py", "from arq.worker import Worker"),
    (wire_names, "shared/domain/x.py", '"""Why, in the wire\'s words."""'),
    (wire_names, "worker/run/x.py", 'KIND = "letta_core"'),
    (walls_broken, "shared/sql/history/x.py", "from shared.sql.runs.run_store import RunStore"),
    (walls_broken, "shared/sql/runs/x.py", "from shared.sql.definitions import agents"),
    (walls_broken, "shared/sql/x.py", "from shared.redis.keys import QUEUE"),
    (walls_broken, "shared/redis/x.py", "def f():\n    import shared.sql.engine"),
    (walls_broken, "worker/queue/x.py", "from worker.bodies.agent_context import RunContext"),
    (walls_broken, "worker/run/x.py", "from worker.queue import leases"),
    (walls_broken, "worker/queue/x.py", "from shared.sql.engine import Database"),
    (walls_broken, "api/runs/x.py", "from api.letta.frames import Frames"),
    (walls_broken, "api/openai/x.py", "from api.letta.frames import Frames"),
    (walls_broken, "api/runs/x.py", "from api.letta.routes.runs import router"),
    (walls_broken, "api/x.py", "from api.routes import health"),
    (walls_broken, "shared/domain/x.py", "from shared.concurrency import Clock"),
    (gerunds, "api/x.py", "class Sending:\n    pass"),
    (retired_names, "worker/x.py", "def give_back(job):\n    pass"),
    (retired_names, "worker/x.py", "log.info('run_given_back', run_id=1)"),
    (retired_names, "worker/x.py", "class LeaseKeeper:\n    pass"),
    (retired_names, "worker/lanes.py", "A = 1"),
    (gerunds, "worker/x.py", "class RunSettling:\n    pass"),
    (headless_sentences, "api/x.py", '"""What a key may do."""'),
    (headless_sentences, "api/x.py", '"""A key.\n\n    * Whose it is."""'),
    (headless_sentences, "worker/x.py", 'A = 1\n"""A number. Who counts it, knows."""'),
    (headless_sentences, "shared/x.py", "a = 1  # Whoever asks, waits."),
    (headless_sentences, "shared/x.py", "# It is kept. What\n# came later, is not."),
    (headless_sentences, "cli/x.py", "# A lock that nobody holds."),
    (late_imports, "api/x.py", "def f():\n    import json"),
    (late_imports, "worker/models/x.py", "def f():\n    from shared.redis import keys"),
    (late_imports, "worker/bodies/step_loop.py", "async def f():\n    from openai import AsyncOpenAI"),
    (late_imports, "worker/bodies/step_loop.py", "import importlib\nx = importlib.import_module('openai')"),
    (assigned_statuses, "worker/x.py", "def f(run):\n    run.status = 'failed'"),
    (copied_statuses, "worker/x.py", "msgspec.structs.replace(run, status=RunStatus.FAILED)"),
    (copied_statuses, "api/x.py", "Run(id=a, status=RunStatus.RUNNING)"),
    (updated_statuses, "shared/sql/x.py", "sa.update(runs).where(a).values(status='failed')"),
    (updated_statuses, "shared/sql/x.py", "tables.runs.update().values({'status': 'failed', 'fence': 1})"),
    (updated_statuses, "shared/sql/x.py", "update(runs).values({runs.c.status: 'failed'})"),
    (updated_statuses, "shared/sql/x.py", "sa.text('UPDATE runs SET fence = 2, status = :status')"),
    (own_transactions, "shared/sql/runs/run_store.py", "async def f(c):\n    await c.commit()"),
    (own_transactions, "shared/sql/runs/run_store.py", "async def f(e):\n    async with e.begin() as c:\n        pass"),
    (own_transactions, "worker/x.py", "session.commit()"),
    (own_transactions, "api/x.py", "async def f(c):\n    await c.execute('COMMIT')"),
    (unscoped_questions, "api/routes/x.py", "async def f(services):\n    await services.runs.look_up(run_id)"),
    (unscoped_questions, "api/runs/x.py", "async def f(self):\n    await self.events.read(run_id, 1)"),
    (bare_tasks, "worker/x.py", "asyncio.create_task(work())"),
    (bare_tasks, "worker/x.py", "create_task(work(), name='work')"),
    (bare_tasks, "worker/x.py", "asyncio.get_running_loop().create_task(work())"),
    (bare_tasks, "worker/x.py", "asyncio.ensure_future(work())"),
    (bare_tasks, "worker/x.py", "group.create_task(work())"),
    (swallowed_cancellations, "worker/x.py", "try:\n    a()\nexcept asyncio.CancelledError:\n    log()"),
    (swallowed_cancellations, "worker/x.py", "with suppress(asyncio.CancelledError):\n    a()"),
    (spelled_keys, "worker/x.py", "f'run:{{{run_id}}}:events'"),
    (spelled_keys, "worker/x.py", "KEY = 'holdfast:queue'"),
    (spelled_keys, "shared/redis/queue.py", "KEY = b'arq:queue'"),
    (sleeps, "tests/unit/test_x.py", "async def test():\n    await asyncio.sleep(0)"),
    (sleeps, "tests/unit/test_x.py", "from time import sleep\nsleep(1)"),
    (unclosed_servers, "tests/unit/test_x.py", "async def test():\n    await asyncio.start_server(serve)"),
    (emptied_servers, "tests/unit/test_x.py", "async def test():\n    await client().flushall()"),
    (replaced_classes, "tests/unit/test_x.py", "from unittest.mock import AsyncMock"),
    (replaced_classes, "tests/unit/test_x.py", "import unittest.mock"),
    (replaced_classes, "tests/unit/test_x.py", "monkeypatch.setattr('worker.step_loop.run_steps', fake)"),
    (
        replaced_classes,
        "tests/unit/test_x.py",
        "from shared.sql.run_store import RunStore\nmonkeypatch.setattr(RunStore, 'claim', fake)",
    ),
    (
        replaced_classes,
        "tests/unit/test_x.py",
        "from shared.sql.run_store import RunStore\nRunStore.claim = fake",
    ),
    (broad_excepts, "api/x.py", "def f():\n    try:\n        a()\n    except Exception:\n        log()"),
    (broad_excepts, "api/x.py", "try:\n    a()\nexcept:\n    pass"),
    (broad_excepts, "api/x.py", "try:\n    a()\nexcept (ValueError, BaseException) as e:\n    raise B from e"),
    (broad_excepts, "api/x.py", "with contextlib.suppress(Exception):\n    a()"),
    (settings_elsewhere, "worker/bodies/step_loop.py", "def f():\n    return Settings()"),
    (module_instances, "api/x.py", "CLIENT = httpx2.AsyncClient()"),
    (module_instances, "api/x.py", "store: RunStore = RunStore(database)"),
    (module_instances, "api/x.py", "thing = Thing()"),
    (environment_at_import, "shared/x.py", "import os\nDEBUG = os.environ.get('DEBUG')"),
    (environment_at_import, "shared/x.py", "import os\nclass A:\n    debug = os.getenv('DEBUG')"),
    (silenced_types, "api/x.py", "a = b  # type: ignore[assignment]"),
    (silenced_types, "api/x.py", "# pyright: basic"),
    (unexplained_lints, "api/x.py", "a = 1  # noqa: E501"),
    (unexplained_lints, "api/x.py", "a = 1  # noqa"),
    (notes, "api/x.py", "a = 1  # TO" + "DO: finish"),
]

HARMLESS: list[tuple[Rule, str, str]] = [
    (long_functions, "api/x.py", "def f():\n" + "    a = 1\n" * 58),
    (deep_blocks, "worker/x.py", THREE_DEEP),
    (wrong_directions, "cli/operator/x.py", "from worker.main import run"),
    (wrong_directions, "worker/x.py", "from shared.domain.ids import RunId"),
    (strangers, "shared/sql/runs/run_store.py", "import sqlalchemy as sa"),
    (walls_broken, "shared/sql/runs/x.py", "from shared.sql.history import messages"),
    (walls_broken, "shared/sql/history/x.py", "from shared.sql import paging"),
    (wire_names, "worker/models/x.py", '"""The same on the wire."""'),
    (wire_names, "api/letta/x.py", '"""Letta\'s words."""'),
    (walls_broken, "api/application.py", "from api.letta.routes import runs"),
    (walls_broken, "worker/main.py", "from worker.queue import leases"),
    (walls_broken, "worker/run/x.py", "import asyncio"),
    (gerunds, "api/x.py", "class RunListing:\n    pass"),
    (retired_names, "worker/x.py", "# It gives the job back to the one next door.\nrelease(moment)"),
    (retired_names, "shared/sql/run_tables.py", "reserved_seq = 1"),
    (gerunds, "api/x.py", "class WaitingMessages:\n    pass"),
    (headless_sentences, "api/x.py", '"""Decides what a key may do, and who may use it."""'),
    (headless_sentences, "api/x.py", "# What if it fails? Then it is tried again."),
    (headless_sentences, "api/x.py", "TEXT = 'What nobody reads.'"),
    (headless_sentences, "api/x.py", '"""`Whose` is a name. `nobody` is one, too."""'),
    (
        late_imports,
        "worker/models/openai_models.py",
        "def f():\n    from pydantic_ai.models.openai import OpenAIChatModel",
    ),
    (late_imports, "worker/tools/guest/child_call.py", "def f():\n    return importlib.import_module('asyncio')"),
    (copied_statuses, "api/x.py", "await store.list_runs(status=RunStatus.CREATED)"),
    (assigned_statuses, "worker/x.py", "status = next_status(run.status, trigger)"),
    (updated_statuses, "shared/sql/x.py", "sa.update(steps).values(status='failed')"),
    (updated_statuses, "shared/sql/x.py", "sa.update(runs).where(runs.c.status == 'created').values(dispatch=2)"),
    (updated_statuses, "shared/sql/x.py", "sa.text(\"UPDATE runs SET fence = 2 WHERE status = 'running'\")"),
    (updated_statuses, "shared/sql/runs/rows.py", "sa.update(runs).values(status='failed')"),
    (own_transactions, "shared/sql/engine.py", "async def f(c):\n    await c.commit()"),
    (own_transactions, "worker/x.py", "async def f(clock):\n    clock.begin()"),
    (own_transactions, "worker/x.py", "MESSAGE = 'begin with the newest message'"),
    (unscoped_questions, "api/routes/x.py", "async def f(services):\n    await services.runs.get(project_id, run_id)"),
    (unscoped_questions, "api/routes/x.py", "async def f(form):\n    await form.file.read()"),
    (unscoped_questions, "worker/x.py", "async def f(services):\n    await services.runs.look_up(run_id)"),
    (bare_tasks, "worker/x.py", "group.create_task(work(), name='work')"),
    (swallowed_cancellations, "worker/x.py", "try:\n    a()\nexcept asyncio.CancelledError:\n    b()\n    raise"),
    (spelled_keys, "worker/x.py", "'''run:{id}:events is the stream.'''"),
    (spelled_keys, "worker/x.py", "f'run: {run_id} ended'"),
    (spelled_keys, "shared/redis/keys.py", "f'run:{{{run_id}}}:events'"),
    (sleeps, "tests/unit/test_x.py", "SOURCE = 'import time\\ntime.sleep(1)'"),
    (unclosed_servers, "tests/unit/test_x.py", "async def test():\n    async with stream_server(serve) as port: ..."),
    (emptied_servers, "tests/unit/test_x.py", "async def test():\n    await redis.flushdb()"),
    (replaced_classes, "tests/unit/test_x.py", "monkeypatch.setenv('HOLDFAST_LOG_LEVEL', 'DEBUG')"),
    (broad_excepts, "api/x.py", "try:\n    a()\nexcept BaseException:\n    undo()\n    raise"),
    (broad_excepts, "api/x.py", "try:\n    a()\nexcept (ValueError, KeyError):\n    pass"),
    (module_instances, "api/x.py", "router = APIRouter()\nlog = structlog.get_logger()\nPATTERN = re.compile('a')"),
    (environment_at_import, "shared/x.py", "import os\ndef f():\n    return os.environ['HOME']"),
    (unexplained_lints, "api/x.py", "a = 1  # noqa: S104 - the container's port mapping decides who reaches it"),
    (notes, "api/x.py", "DOCUMENT = 'a TO" + "DO in a string'"),
]


def _names(cases: list[tuple[Rule, str, str]]) -> list[str]:
    return [f"{rule.__name__}-{number}" for number, (rule, _, _) in enumerate(cases)]


@pytest.mark.parametrize(("rule", "path", "code"), BREAKING, ids=_names(BREAKING))
def test_a_rule_finds_what_breaks_it(rule: Rule, path: str, code: str) -> None:
    """Each rule fails on a snippet that breaks it."""
    assert list(rule(Source(path, code)))


@pytest.mark.parametrize(("rule", "path", "code"), HARMLESS, ids=_names(HARMLESS))
def test_a_rule_leaves_good_code_alone(rule: Rule, path: str, code: str) -> None:
    """No rule fails on a snippet that only resembles what it forbids."""
    assert not list(rule(Source(path, code)))


def test_the_file_limit_is_the_limit() -> None:
    """300 lines are fine, 301 are not."""
    assert not list(long_files(Source("api/x.py", "a = 1\n" * 300), 300))
    assert list(long_files(Source("api/x.py", "a = 1\n" * 301), 300))


@pytest.mark.parametrize(
    "path", ["api/utils.py", "worker/run_manager.py", "shared/base.py", "api/v2/runs.py", "tests/common/x.py"]
)
def test_a_vague_name_is_found(path: str) -> None:
    """Each banned word is found, in a file's name and in a folder's."""
    assert list(vague_names(path))


def test_a_full_word_is_not_vague() -> None:
    """A word that merely contains a banned one is fine."""
    assert not list(vague_names("shared/sql/database_connection.py"))


@pytest.mark.parametrize("how", ["import shared.a", "def f():\n    from shared import a", "from . import a"])
def test_a_cycle_is_found(how: str) -> None:
    """A cycle through two others is found, however its last link is written."""
    sources = [
        Source("shared/a.py", "from shared.b import x"),
        Source("shared/b.py", "from shared import c"),
        Source("shared/c.py", how),
    ]
    assert list(cycles(sources))
    assert not list(cycles(sources[:2]))


def test_a_script_that_makes_up_a_key_is_found() -> None:
    """A Lua script without a header, or with a key of its own, is found."""
    good = dedent("""\
        -- KEYS[1]  the run's events
        return redis.call('XLEN', KEYS[1])
    """)
    assert not list(keys_in_lua("shared/redis/x.lua", good))
    assert list(keys_in_lua("shared/redis/x.lua", "return redis.call('XLEN', KEYS[1])"))
    assert list(keys_in_lua("shared/redis/x.lua", good + "redis.call('DEL', 'run:1:events')"))


def test_a_small_module_of_one_other_is_found() -> None:
    """It is found until a second module imports it, it has grown, or it has a reason."""
    small, first = Source("api/small.py", "A = 1"), Source("api/first.py", "from api.small import A\n" * 40)
    second = Source("api/second.py", "import api.small\n" * 40)
    elsewhere = {"api/first.py": "", "api/second.py": ""}
    assert [finding for finding in lonely_modules([small, first], elsewhere) if "small.py:1: 1 lines" in finding]
    assert not list(lonely_modules([small, first, second], elsewhere))
    assert not list(lonely_modules([Source("api/small.py", "A = 1\n" * 40), first], elsewhere))
    assert not list(lonely_modules([small, first], elsewhere | {"api/small.py": "a reason"}))


@pytest.mark.parametrize(
    "text",
    [
        "renew_ring(run)",
        "stalledClaims = 2",
        "A bell for workers.",
        "the run that carries the decision out",
        "a take-over",
    ],
)
def test_a_retired_word_is_found_in_a_text(text: str) -> None:
    """In every form of it, in code and in prose; not in a longer word, and not where it is allowed."""
    assert list(retired_texts("docs/x.md", text))
    assert not list(retired_texts("docs/x.md", "Installing during a spring; a run is taken over, and its log adopted."))
    assert not list(retired_texts("tests/kit/services/tcp_proxy.py", "a connection that is stalled"))


@pytest.mark.parametrize(
    "text", ["Whoever asks waits.", "It is told why.", "What came of it.", "A file in the place of it."]
)
def test_rewritten_folders_and_documents_name_the_actor(text: str) -> None:
    """Scripts may use these words, and documents may speak of somebody else."""
    assert list(retired_texts("cli/x.py", text))
    assert list(retired_texts("docs/x.md", text))
    assert list(retired_texts("cli/x.py", "Somebody asks."))
    assert not list(retired_texts("docs/x.md", "Somebody asks."))
    assert not list(retired_texts("tests/x.py", text))
