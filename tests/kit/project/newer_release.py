"""A future release: this release's code with further migrations, in a folder of its own."""

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from shared.sql.migrate import newest_revision
from tests.kit.commands import HOLDFAST
from tests.kit.project.source_tree import ROOT

PACKAGES = ("api", "cli", "worker")
MIGRATION = '''"""A change of a newer release."""

from alembic import op

revision = "{revision}"
down_revision = "{before}"


def upgrade() -> None:
    for statement in {statements!r}:
        op.execute(statement)
'''


class NewerRelease:
    """Migrates as a newer release does. Each of `migrations` has the statements of one."""

    def __init__(self, folder: Path, migrations: Sequence[Sequence[str]]) -> None:
        self._folder = folder
        shutil.copytree(ROOT / "shared", folder / "shared", ignore=shutil.ignore_patterns("__pycache__"))
        for name in PACKAGES:
            (folder / name).symlink_to(ROOT / name)
        self.revision = newest_revision()
        following = int(self.revision.partition("_")[0]) + 1
        for number, statements in enumerate(migrations, start=following):
            before, self.revision = self.revision, f"{number:04}_of_a_newer_one"
            text = MIGRATION.format(revision=self.revision, before=before, statements=list(statements))
            (folder / "shared/sql/migrations/versions" / f"{self.revision}.py").write_text(text)

    async def migrate(self, url: str) -> str:
        """Runs `holdfast migrate` of that release. Returns its output. Fails if the command does."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", HOLDFAST, "migrate"),
            cwd=self._folder,
            env={**os.environ, "HOLDFAST_DATABASE_URL": url},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, said
        return said
