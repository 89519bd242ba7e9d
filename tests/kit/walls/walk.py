"""The walk: a caller requests everything of another project, in every place of every route, and gets the answers for
things that do not exist."""

import re
from collections.abc import Mapping
from typing import Any

import httpx
import sqlalchemy as sa

from shared.sql.engine import Database
from shared.sql.run_tables import metadata
from tests.kit.walls.belongings import ID, Belongings, every_value, is_idle, unknown_like
from tests.kit.walls.requests import Build, Pick, Request, builders

MAKES_THE_SAME_NAME = frozenset(
    {
        *("POST /v1/tools", "PUT /v1/tools", "POST /v1/blocks", "POST /v1/archives"),
        *("POST /v1/mcp-servers", "PUT /v1/tools/mcp/servers", "PATCH /v1/mcp-servers/{mcp_server_id}"),
    }
)
"""Routes that give the caller something of its own by a name that the other project uses. They come last, as do
submissions by such a name: their results are the caller's own, and are shown to it."""

CHANGES = (
    (re.compile(r"([a-z]+-)?[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)?"), "<time>"),
    (re.compile(r"\b(resp|conv|msg|rs|fc|fco|mcp|mcpr|mcpa)_[0-9a-f]{32,64}\b"), "<id>"),
    (re.compile(r'("(?:created|completed)_at"): ?\d+\b'), r"\1: <number>"),
    (re.compile(r'(_ns"|"created"|"expires_at"): ?"?\d+'), r"\1: <number>"),
    (re.compile(r'"(token|key|key_hint|hint|prefix)": ?"[^"]+"'), r'"\1": "<secret>"'),
    (re.compile(r'"signing_secret(_hint)?": ?"[^"]+"'), '"signing_secret": "<secret>"'),
    (re.compile(r'"(created|updated)_at": ?\d+'), '"at": <number>'),
    # It repeats the name that it was given, which has digits of the agent's id.
    (re.compile(r"Unknown tool: '[^']*'"), "Unknown tool"),
    (re.compile(r'"tool_hash": ?"[^"]+"'), '"tool_hash": "<hash of the source>"'),
)
"""Parts that differ between any two answers."""

EACH_ITS_OWN = frozenset({"content-length", "date", "x-request-id"})
"""Headers that differ between any two answers."""

UNSEEN = frozenset({"passage_words"})
"""On SQLite an index of the database's own kind, without the columns that the table has on Postgres."""


class Leak(AssertionError):
    """A caller learned something of another project."""


class Walker:
    """One caller with the key of its project, on its way through the API's document."""

    def __init__(self, client: httpx.AsyncClient, own: Belongings, foreign: Belongings) -> None:
        self._client = client
        self._own = own
        self._foreign = foreign
        self._secrets = every_value(foreign)
        self.requests = 0
        self.routes: set[str] = set()

    async def walk(self, document: Mapping[str, Any]) -> None:
        """Walks all of it. Raises `Leak`."""
        last: list[Build] = []
        for build in builders(document):
            route, _ = self._built(build, 0)
            if f"{route.method} {route.template}" in MAKES_THE_SAME_NAME or self._names_a_submission(build, 0):
                last.append(build)
            else:
                await self._try(build)
        for build in last:
            await self._try(build)

    async def _try(self, build: Build) -> None:
        number, most = 0, 1
        while number < most:
            theirs, nobodys = Pick(self._foreign, number), Pick(unknown_like(self._foreign), number)
            names_a_submission = self._names_a_submission(build, number)
            answers: list[object] = []
            for others in (theirs, nobodys):
                if answers and not theirs.named:
                    continue  # the caller asks for its own: only what is shown is looked at
                own = {**self._own, **(await self._fresh() if names_a_submission else {})}
                request = build(Pick(own), others)
                answers.append(await self._answer(request, {*others.named, *own["agents"], *own["threads"]}))
            if len(set(map(repr, answers))) > 1:
                raise Leak(f"{_shown(request)} is answered otherwise for what nobody has:\n{answers}")
            number, most = number + 1, theirs.most

    def _built(self, build: Build, number: int) -> tuple[Request, Pick]:
        theirs = Pick(self._foreign, number)
        return build(Pick(self._own), theirs), theirs

    def _names_a_submission(self, build: Build, number: int) -> bool:
        """Whether the request gives a submission a name under which its history stores it."""
        _, theirs = self._built(build, number)
        return not theirs.named.isdisjoint([*self._foreign["keys"], *self._foreign["otids"]])

    async def _fresh(self) -> dict[str, list[str]]:
        """Histories of the caller that know no names yet."""
        agent = {"model": "builtin/scripted", "tool_ids": [self._own["tools"][0]], "include_base_tools": False}
        made = await self._client.post("/v1/agents", json=agent)
        params = {"agent_id": made.json()["id"]}
        begun = await self._client.post("/v1/conversations", params=params)
        return {"agents": [params["agent_id"]], "threads": [begun.json()["id"]]}

    async def _answer(self, request: Request, named: set[str]) -> tuple[int, dict[str, str], str]:
        answer = await self._client.request(request.method, request.path, **request.sent)
        self.requests += 1
        self.routes.add(f"{request.method} {request.template}")
        if answer.is_success and request.method == "POST" and re.search("messages|chat|run$", request.path):
            await is_idle(self._client)
        # 502: a server of the caller's own, which is away.
        if answer.status_code >= 500 and answer.status_code not in (501, 502):
            raise Leak(f"{_shown(request)} is answered with {answer.status_code}: {answer.text}")
        text, shown = answer.text, f"{answer.text} {answer.headers}"
        for value in sorted(named, key=len, reverse=True):
            text, shown = text.replace(value, "<named>"), shown.replace(value, "<named>")
        seen = [value for value in self._secrets if value in shown]
        if seen:
            raise Leak(f"{_shown(request)} shows {seen[0]}: {text[:500]}")
        for pattern, instead in CHANGES:
            text = pattern.sub(instead, text)
        headers = {name: value for name, value in answer.headers.items() if name not in EACH_ITS_OWN}
        for value in named:
            headers = {name: said.replace(value, "<named>") for name, said in headers.items()}
        return answer.status_code, headers, text


def _shown(request: Request) -> str:
    return f"{request.method} {request.path} {request.params} {request.headers} {str(request.body)[:300]}"


async def rows_of(database: Database) -> dict[str, set[str]]:
    """Every row of the database as a text, by table."""
    rows: dict[str, set[str]] = {}
    async with database.read() as connection:
        for table in metadata.sorted_tables:
            if table.name not in UNSEEN:
                found = await connection.execute(sa.select(table))
                rows[table.name] = {repr(tuple(row)) for row in found}
    return rows


def refuse_changes(before: Mapping[str, set[str]], after: Mapping[str, set[str]], theirs: Belongings) -> None:
    """Raises `Leak` unless all rows of before are there as they were, and no other row names anything of theirs."""
    ids = {value for value in every_value(theirs) if ID.fullmatch(value)} | {repr(theirs["projects"][0])}
    for table, rows in before.items():
        gone = rows - after[table]
        if gone:
            raise Leak(f"a row of {table} was changed or deleted: {next(iter(gone))}")
        if table == "api_keys":
            continue  # whose scopes name what the key may see, and it sees nothing that is not its project's
        for row in after[table] - rows:
            named = [value for value in ids if value in row]
            if named:
                raise Leak(f"a new row of {table} names {named[0]}: {row}")
