"""Makes the environments of a process from its settings, and refuses at the start what cannot work."""

import asyncio
import os
import shutil
import sysconfig
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from shared.domain.errors import InvalidRequest
from shared.domain.tools import PackageRoom, PackageRules
from shared.packages.environments import PackageBuilder, PackageEnvironments, target_python
from shared.process.context import ProcessContext
from shared.process.settings import Settings

OTHERS_MAY_WRITE = 0o022
OTHERS_MAY_PASS = 0o001


async def package_environments(
    process: ProcessContext, python: str, *, for_other_user: bool = False
) -> PackageEnvironments:
    """The environments of this machine for the Python at the path `python`; the process's own for an empty one.

    `for_other_user`: tools are not of this process's user, so their user must be able to reach the folder. Raises
    `InvalidRequest`, which names the setting.
    """
    rules, uv = package_rules(process.settings), ""
    target = await asyncio.to_thread(target_python, python)
    if rules.index:
        uv = installer()
        prepare(rules.folder, for_other_user=for_other_user)
    return PackageEnvironments(rules, target, PackageBuilder(rules, uv, process.environment), process.clock)


def package_rules(settings: Settings) -> PackageRules:
    """What the settings say of packages."""
    return PackageRules(
        index=settings.package_index.get_secret_value(),
        folder=Path(settings.package_dir).absolute() if settings.package_dir else _cache_folder(),
        room=PackageRoom(settings.package_mb << 20, settings.package_files),
        most_bytes_in_all=settings.package_disk_mb << 20,
        build_s=settings.package_build_s,
        keep=timedelta(days=settings.package_keep_days),
        ca_file=settings.ca_file,
    )


def _cache_folder() -> Path:
    """Where this user keeps what can be made again."""
    if os.getuid() == 0:
        return Path("/var/cache/holdfast/packages")
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "holdfast" / "packages"


def installer() -> str:
    """The program of the same installation, else that of the machine. Raises `InvalidRequest`."""
    beside = sysconfig.get_path("scripts")
    found = shutil.which("uv", path=beside) or shutil.which("uv")
    if found is None:
        raise InvalidRequest("HOLDFAST_PACKAGE_INDEX: packages are installed by uv, which is not here: pip install uv")
    return found


def prepare(folder: Path, *, for_other_user: bool) -> None:
    """Makes the folder, if it is not there. Nobody else may write where code of tools is kept. Raises
    `InvalidRequest`."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o711 if os.getuid() == 0 else 0o700)
        state = folder.stat()
    except OSError as error:
        raise InvalidRequest(
            f"HOLDFAST_PACKAGE_DIR: {folder} cannot be made: {error.strerror}; choose another folder"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequest(f"HOLDFAST_PACKAGE_DIR: {folder} cannot be written; choose a folder of this user's own")
    if state.st_mode & OTHERS_MAY_WRITE:
        raise InvalidRequest(f"HOLDFAST_PACKAGE_DIR: others may write in {folder}: chmod go-w {folder}")
    if for_other_user:
        for place in (folder, *folder.resolve().parents):
            if not place.stat().st_mode & OTHERS_MAY_PASS:
                raise InvalidRequest(
                    f"HOLDFAST_PACKAGE_DIR: the tools' user (HOLDFAST_TOOL_USER) cannot reach {folder}, because "
                    f"{place} is closed to it; choose another folder"
                )
