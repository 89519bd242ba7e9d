"""Measures archival memory: `python -m bench.archival`. It inserts passages in batches and searches them by words and
by random vectors, on SQLite or on the empty database that `--database` names.

The embedding model is a local server, so the figures are only those of the store and the search.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

from shared.domain.ids import ArchiveId, IdMaker, ProjectId
from shared.domain.searches import NewPassage, PassageQuery
from shared.sql.engine import Database
from shared.sql.migrate import migrate
from tests.kit.archival import EMBEDDING, Archival, archival_memory
from tests.kit.runs.definitions import NOW

PROJECT = ProjectId("bench")
IDS = IdMaker()
BATCH = 500
WORDS_OF_A_PASSAGE = 60
VOCABULARY = 20_000
"""No word is a prefix of another, because a query would find both."""
SEARCHES = 20


async def measure(url: str, count: int, dimensions: int) -> None:
    dice = random.Random(1)
    database = Database(url)
    await migrate(database)
    await database.aclose()
    async with archival_memory(url) as archival:
        vectors = [[dice.gauss(0, 1) for _ in range(dimensions)] for _ in range(100)]
        archival.server.embeddings.vector_of = lambda _text: dice.choice(vectors)
        for embedding in (None, EMBEDDING):
            archive = await archival.archive(project_id=PROJECT, embedding=embedding)
            seconds = await _insert(archival, archive.id, count, dice)
            kind = f"with vectors of {dimensions} numbers" if embedding else "words alone"
            print(f"{kind}: {count} passages in {seconds:.1f} s, {count / seconds:.0f}/s")
            for words in (1, 3, 10):
                took = await _search(archival, PassageQuery(archive_id=archive.id, limit=10), words, dice)
                print(f"  a query of {words} words: median {took[0]:.0f} ms, slowest {took[1]:.0f} ms")


async def _insert(archival: Archival, archive_id: ArchiveId, count: int, dice: random.Random) -> float:
    began = time.perf_counter()
    for start in range(0, count, BATCH):
        new = [
            NewPassage(id=IDS.passage(), text=_text(WORDS_OF_A_PASSAGE, dice), created_at=NOW)
            for _ in range(min(BATCH, count - start))
        ]
        await archival.memory.insert_into(PROJECT, archive_id, new)
    return time.perf_counter() - began


async def _search(archival: Archival, query: PassageQuery, words: int, dice: random.Random) -> tuple[float, float]:
    took: list[float] = []
    for _ in range(SEARCHES):
        began = time.perf_counter()
        asked = PassageQuery(text=_text(words, dice), archive_id=query.archive_id, limit=query.limit)
        await archival.memory.search(PROJECT, asked)
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took), max(took)


def _text(words: int, dice: random.Random) -> str:
    """Draws words with the frequencies of a language: a few are common, most are rare."""
    return " ".join(f"{min(int(dice.paretovariate(0.7)), VOCABULARY)}th" for _ in range(words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", help="URL of an empty database (default: a new SQLite file)")
    parser.add_argument("--passages", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, default=1536)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = arguments.database or f"sqlite:///{Path(directory) / 'bench.sqlite3'}"
        asyncio.run(measure(url, arguments.passages, arguments.dimensions))


if __name__ == "__main__":
    main()
