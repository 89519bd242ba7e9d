"""Writes the evidence of broken promises, a file per run: logs, SQL, and the frames that readers got."""

from pathlib import Path

import sqlalchemy as sa

from bench.chaos.ledger import Ledger, RunRecord
from shared.domain.ids import RunId, Seq
from shared.sql.engine import Database
from shared.sql.run_tables import runs
from shared.sql.runs.steps import EventStore

LOG_LINES = 40


async def write_evidence(ledger: Ledger, database: Database, directory: Path) -> Path:
    """Writes a file for each run with a violation. Returns their directory."""
    place = directory / "violations"
    place.mkdir(exist_ok=True)
    lines = [
        f"{path.relative_to(directory)}: {line}"
        for path in sorted(directory.glob("*/*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if "run-" in line
    ]
    for run_id in sorted({violation.run_id for violation in ledger.violations} - {"-"}):
        told = [violation.detail for violation in ledger.violations if violation.run_id == run_id]
        logged = [line for line in lines if run_id in line][-LOG_LINES:]
        record = ledger.runs.get(run_id)
        seen = [] if record is None else _seen(record)
        if (response := ledger.responses.get(run_id)) is not None:
            seen += [f"event {number}: {frame.decode()!r}" for number, frame in sorted(response.events.items())]
        parts = {"violations": told, "logs": logged, "SQL": await _stored(run_id, database), "readers": seen}
        text = "\n\n".join("\n".join([f"== {title}", *shown]) for title, shown in parts.items())
        (place / f"{run_id}.txt").write_text(text + "\n")
    return place


async def _stored(run_id: str, database: Database) -> list[str]:
    async with database.read() as connection:
        found = await connection.execute(sa.select(runs).where(runs.c.id == run_id))
        rows = found.mappings().all()
    fields = [f"{name}: {value}" for row in rows for name, value in row.items()]
    entries = await EventStore(database).read(RunId(run_id), Seq(0), limit=10_000)
    return [*fields, *(f"event {seq}: {entry.decode()}" for seq, entry in entries)]


def _seen(record: RunRecord) -> list[str]:
    frames = [f"frame {seq}: {frame.decode()!r}" for seq, frame in sorted(record.frames.items())]
    return [f"gaps {sorted(record.gaps)}, ends {sorted(record.ends)}, status events {record.story.notes}", *frames]
