"""The receiver of runs' callbacks, which sometimes refuses one, and the check of all that it received."""

import asyncio
import base64
import hashlib
import hmac
import random
from collections import defaultdict
from dataclasses import dataclass

import sqlalchemy as sa

from api.callbacks.outboxes import key_of_project
from bench.chaos.deployment import CALLBACK_SECRET
from bench.chaos.ledger import Column, Ledger
from shared.domain.ids import ProjectId
from shared.domain.lifecycle import TERMINAL
from shared.sql.engine import Database
from shared.sql.run_tables import runs
from tests.kit.product.callback_receiver import CallbackReceiver, ReceivedCallback

WAITS_S = 150.0
"""Seconds to wait for callbacks: another API process takes over a dead one's after 60 s; a second failure costs 30 s,
and a third two minutes."""


@dataclass
class Callbacks:
    """Receives callbacks, and compares them with SQL."""

    ledger: Ledger
    database: Database
    receiver: CallbackReceiver
    dice: random.Random

    def url(self) -> str:
        """Returns the URL for a run. Sometimes the next attempt is refused, or gets no answer."""
        if self.dice.random() < 0.1:
            self.receiver.answer(self.dice.choice([500, 503, None]))
        return self.receiver.url

    async def come_in(self) -> None:
        """Waits until every callback was delivered, or has failed for good."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAITS_S
        while loop.time() < deadline:
            ended = await self._ended()
            if all(row.callback_status_code == 200 for row in ended.values()):
                return
            await asyncio.sleep(0.5)

    async def check(self) -> None:
        """Checks that each ended run called back at least once, always with the same body, under our signature."""
        told: dict[str, list[ReceivedCallback]] = defaultdict(list)
        for one in self.receiver.received:
            told[one.headers.get("webhook-id", "-")].append(one)
        ended = await self._ended()
        for record in self.ledger.runs.values():
            if record.is_called_back and record.run_id not in ended:
                self.ledger.broken(Column.CALLBACKS, record.run_id, "has not ended, or has lost its callback's URL")
        for run_id, row in ended.items():
            if row.callback_status_code != 200:
                detail = f"was not delivered: {len(told[run_id])} attempts, {row.callback_error}"
                self.ledger.broken(Column.CALLBACKS, run_id, detail)
        for run_id, received in told.items():
            self._check_told(run_id, received, ended.get(run_id))
        self.ledger.notes["callbacks received"] += len(self.receiver.received)
        self.ledger.notes["runs that called back"] += len(told)

    def _check_told(
        self, run_id: str, received: list[ReceivedCallback], row: sa.Row[tuple[object, ...]] | None
    ) -> None:
        if row is None:
            self.ledger.broken(Column.CALLBACKS, run_id, "called back without a request for it, or before its end")
            return
        if len({one.content for one in received}) > 1:
            self.ledger.broken(Column.CALLBACKS, run_id, f"sent different bodies: {[one.content for one in received]}")
        for one in received:
            if not _is_signed(one):
                self.ledger.broken(Column.CALLBACKS, run_id, f"not signed by us: {one.headers}")
        body = received[0].body
        said = body["run_id"], body["status"], body["metadata"]["result"]["stop_reason"]["stop_reason"]
        if said != (run_id, row.status, row.stop_reason):
            self.ledger.broken(
                Column.CALLBACKS, run_id, f"the callback has {said}, SQL {row.status}, {row.stop_reason}"
            )

    async def _ended(self) -> dict[str, sa.Row[tuple[object, ...]]]:
        query = sa.select(runs).where(runs.c.callback_url.is_not(None), runs.c.status.in_(TERMINAL))
        async with self.database.read() as connection:
            return {row.id: row for row in await connection.execute(query)}


def _is_signed(one: ReceivedCallback) -> bool:
    """Returns whether the signature is that of the run's project."""
    signed = f"{one.headers['webhook-id']}.{one.headers['webhook-timestamp']}.".encode() + one.content
    key = key_of_project(CALLBACK_SECRET.encode(), ProjectId(one.body.get("project_id", "")))
    assert key is not None
    expected = hmac.new(key, signed, hashlib.sha256).digest()
    signature = one.headers.get("webhook-signature", "")
    return hmac.compare_digest("v1," + base64.b64encode(expected).decode(), signature)
