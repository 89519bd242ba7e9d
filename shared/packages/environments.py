"""Environments: folders of packages on this machine, each for one set of exact versions and one kind of Python.

    <folder>/<key>/<build>  the packages; the key is the hash of the versions and of the Python's tag
    <folder>/<key>.lock     shared by users, exclusive for a builder or remover; its time is that of the last use
    <folder>/work-…         a build or a removal in progress; locked as long as its process lives

Each build has a new name, because a process that has mounted an earlier build's folder does not see the new one.

Every process may be killed at any time. The next builder removes the remains, and an environment is there completely or
not at all. It can always be built again.

`package_environments` constructs the environments of a process from its settings, and refuses invalid ones at start.
"""

import asyncio
import errno
import hashlib
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import structlog

from shared.concurrency import Clock, repeating
from shared.domain.errors import InvalidRequest, Unavailable
from shared.domain.tools import PackageRoom, PackageRules, Tool, ToolPackages, requirement_lines
from shared.packages.bounded_program import (
    WORK,
    Finished,
    WorkFolder,
    remove_leftovers,
    remove_tree,
    run_bounded,
    taken_by,
    too_large,
    try_lock,
    work_folder,
)
from shared.process.context import ProcessContext
from shared.process.settings import Settings

# Resolves a tool's packages and installs them, with uv. It accepts only wheels, which are unpacked: code from an index
# runs only inside a tool's sandbox.


AT_ONCE = 2
"""Concurrent builds of one process."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
LONGEST_REASON = 600
COMMON = (
    *("--quiet", "--color", "never", "--no-config", "--no-cache", "--system-certs", "--no-python-downloads"),
    *("--no-sources", "--only-binary", ":all:"),
)
"""No configuration of this machine, no cache, and no packages that need a build."""
LOOK = (
    "import sys, sysconfig; "
    "print(sys.implementation.cache_tag, sysconfig.get_platform(), sysconfig.get_config_var('EXT_SUFFIX'))"
)
_URL = re.compile(r"\w+://[^\s`'\")>]+")
_PREFIX = re.compile(r"^(?:error|cause|hint|warning): *")
_AWAY = ("Failed to fetch", "Failed to download", "Request failed after", "error sending request")
_OPTIONS = re.compile(r" \(i\.e\., with `[^`]*`\)| Consider adding .*")
"""Advice of uv that only the operator could follow."""
TOO_LARGE = f"os error {errno.EFBIG}"


class TargetPython(msgspec.Struct, frozen=True):
    """The Python for which packages are installed."""

    executable: str
    tag: str
    """Its version and the machine's architecture. Files for one tag work with each Python of that tag."""


def target_python(executable: str) -> TargetPython:
    """The Python at this path; this process's own if the path is empty. Raises `InvalidRequest` if there is none."""
    if not executable or Path(executable).resolve() == Path(sys.executable).resolve():
        parts = (sys.implementation.cache_tag, sysconfig.get_platform(), sysconfig.get_config_var("EXT_SUFFIX"))
        return TargetPython(sys.executable, " ".join(map(str, parts)))
    try:
        answer = subprocess.run(  # noqa: S603 - the operator's own choice, or this process's own
            [executable, "-I", "-S", "-c", LOOK], capture_output=True, text=True, timeout=20, check=True, env={}
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidRequest(f"HOLDFAST_TOOL_PYTHON: {executable} cannot be asked for its version: {error}") from error
    return TargetPython(executable, answer.stdout.strip())


class PackageBuilder:
    """Runs uv, at most two at once."""

    def __init__(self, rules: PackageRules, uv: str, environment: Mapping[str, str]) -> None:
        """`uv`: the path of its program. It gets only the proxy variables of `environment`."""
        self._rules = rules
        self._uv = uv
        self._proxies = {name: value for name, value in environment.items() if name.upper() in PROXIES}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def resolved(self, requirements: Sequence[str], python: TargetPython) -> list[str]:
        """All packages that these lines need, as `name==version`, sorted. Raises `InvalidRequest` with the reason if
        they cannot be resolved, and `Unavailable` if the index does not answer."""
        async with self._work(requirements) as work:
            pins = work.path / "pins"
            asked = ("compile", "--no-header", "--no-annotate", "--output-file", str(pins), "requirements")
            await self._run(work, python, *asked)
            return sorted(line for line in pins.read_text().splitlines() if line)

    async def install(self, pins: Sequence[str], python: TargetPython, place: Path) -> None:
        """Installs these packages into a new folder `place`, whose only folder contains them. The folder appears
        complete and read-only. The inner folder has a name that was never used before. Raises as `resolved`."""
        async with self._work(pins) as work:
            made = work.path / "packages"
            build = made / work.path.name
            asked = ("install", "--compile-bytecode", "--target", str(build), "-r", "requirements")
            await self._run(work, python, *asked)
            await asyncio.to_thread(_seal, build)
            # Without an await in between: a cancelled build has published either nothing or everything.
            _publish(made, place)

    @asynccontextmanager
    async def _work(self, lines: Sequence[str]) -> AsyncGenerator[WorkFolder]:
        async with self._places, work_folder(self._rules.folder) as work:
            (work.home / "requirements").write_text("".join(f"{line}\n" for line in lines))
            if self._rules.ca_file:
                (work.home / "certificates").write_text(await asyncio.to_thread(_certificates, self._rules.ca_file))
            yield work

    async def _run(self, work: WorkFolder, python: TargetPython, *arguments: str) -> None:
        # The environment carries the index's URL: other users of the machine can read command lines.
        environment = {"UV_DEFAULT_INDEX": self._rules.index, "UV_HTTP_RETRIES": "1", **self._proxies}
        command = [self._uv, "pip", *arguments, *COMMON, "--python", python.executable]
        if self._rules.ca_file:
            command += ["--cert", "certificates"]
        ended = await run_bounded(command, work, environment, self._rules.room)
        if ended.status:
            raise _refusal(ended, work.path, self._rules.room.bytes_)


def _refusal(ended: Finished, work: Path, most_bytes: int) -> InvalidRequest | Unavailable:
    """The problem in uv's words, without addresses: the index's may contain a password."""
    text = _URL.sub("the index", ended.said.replace(str(work), ""))
    if TOO_LARGE in text or ended.status == -signal.SIGXFSZ:
        return InvalidRequest(too_large(most_bytes), field="pip_requirements")
    lines = [_PREFIX.sub("", line.strip()) for line in text.splitlines() if line.strip()]
    if any(sign in text for sign in _AWAY):
        return Unavailable(f"the package index (HOLDFAST_PACKAGE_INDEX) does not answer: {lines[-1][:LONGEST_REASON]}")
    reasons = [line for line in lines if not line.startswith(("No solution found", "Failed to resolve"))]
    reason = _OPTIONS.sub("", " ".join(reasons)) or f"the installer ended with status {ended.status}"
    return InvalidRequest(f"pip_requirements: {reason[:LONGEST_REASON]}", field="pip_requirements")


def _seal(top: Path) -> None:
    """Makes the folder's contents read-only for every user, and removes everything but files and folders."""
    (top / ".lock").unlink(missing_ok=True)
    for path in (*top.rglob("*"), top):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            path.unlink()
        else:
            path.chmod(0o555 if path.is_dir() else 0o444)


def _publish(made: Path, place: Path) -> None:
    made.rename(place)
    place.chmod(0o555)  # after the move, which writes in it


def _certificates(ca_file: str) -> str:
    """The system's certificates and those of the file, for a program that accepts only one of the two."""
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=ca_file)
    return "".join(map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True)))


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

POLL_S = 0.05
"""Seconds between two attempts to get a lock that another process holds."""
TIDY_EVERY_S = 3600.0
KEY = re.compile(r"[0-9a-f]{32}")
NO_MODULES = ("__pycache__", "bin", "include", "share")
"""Folders of a package that contain no modules."""


class PackageEnvironments:
    """The environments of one machine, for one Python. Any number of processes may share the folder."""

    def __init__(self, rules: PackageRules, python: TargetPython, builder: PackageBuilder, clock: Clock) -> None:
        self._rules = rules
        self._python = python
        self._builder = builder
        self._clock = clock

    @property
    def are_built(self) -> bool:
        """Whether this server installs packages."""
        return bool(self._rules.index)

    async def chosen(self, asked: Sequence[Mapping[str, Any]] | None, before: Tool | None) -> ToolPackages | None:
        """The packages of a tool that asks for `asked`, its `pip_requirements`. None if it asks for none, or if this
        server installs none.

        A tool that asks for the same as `before` keeps its versions. Otherwise they are resolved and installed now, to
        prove that they work. Raises `InvalidRequest`, `Unavailable`.
        """
        if not asked:
            return None
        if before is not None and before.packages is not None and before.pip_requirements == asked:
            return before.packages
        if not self.are_built:
            return None
        lines = requirement_lines(asked)
        async with self._in_time():
            pins = await self._builder.resolved(lines, self._python)
            lock = await self._ready(pins)
            try:
                return ToolPackages(pins, await asyncio.to_thread(modules_in, _build_in(self._place(pins))))
            finally:
                os.close(lock)

    @asynccontextmanager
    async def folders(self, packages: ToolPackages | None) -> AsyncGenerator[tuple[str, ...]]:
        """The folders from which to import these packages. They exist for the block, and are built if needed.

        Raises `InvalidRequest` and `Unavailable`, with the reason, if they cannot be built.
        """
        if packages is None:
            yield ()
            return
        async with self._in_time():
            lock = await self._ready(packages.pins)
        try:
            yield (str(_build_in(self._place(packages.pins))),)
        finally:
            os.close(lock)

    @asynccontextmanager
    async def tidied(self) -> AsyncGenerator[None]:
        """Removes old environments at intervals for as long as the block lasts, if this server installs packages."""
        if not self.are_built:
            yield
            return
        async with repeating(self.tidy, every_s=TIDY_EVERY_S, name="remove unused packages"):
            yield

    async def tidy(self) -> None:
        """Removes environments that are long unused or exceed the room for all, and leftovers."""
        await asyncio.to_thread(self._tidy)

    @asynccontextmanager
    async def _in_time(self) -> AsyncGenerator[None]:
        seconds = self._rules.build_s
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise InvalidRequest(
                f"pip_requirements: the packages were not installed within {seconds:g} s (HOLDFAST_PACKAGE_BUILD_S)",
                field="pip_requirements",
            ) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise Unavailable(f"{self._rules.folder} (HOLDFAST_PACKAGE_DIR) cannot be used: {reason}") from error

    async def _ready(self, pins: Sequence[str]) -> int:
        """Builds the environment if it is missing. Returns a descriptor that prevents its removal."""
        place = self._place(pins)
        if not self.are_built and not place.is_dir():
            raise InvalidRequest(
                "pip_requirements: the packages are not on this machine, and it has no index to get them from "
                "(HOLDFAST_PACKAGE_INDEX)",
                field="pip_requirements",
            )
        path = _lock_of(place)
        while True:
            lock = try_lock(path, is_shared=True)
            if lock is not None:
                if place.is_dir():
                    self._note_use(lock)
                    return lock
                os.close(lock)
            lock = try_lock(path)
            if lock is None:
                await asyncio.sleep(POLL_S)
                continue
            try:
                if not place.is_dir():
                    await self._build(pins, place)
            finally:
                os.close(lock)

    async def _build(self, pins: Sequence[str], place: Path) -> None:
        began = self._clock.monotonic()
        await self._builder.install(pins, self._python, place)
        seconds = round(self._clock.monotonic() - began, 1)
        log.info("packages_installed", environment=place.name, packages=len(pins), seconds=seconds)
        await self.tidy()

    def _note_use(self, lock: int) -> None:
        now = self._clock.now().timestamp()
        with suppress(PermissionError):  # the file of another user, who has built it
            os.utime(lock, (now, now))

    def _place(self, pins: Sequence[str]) -> Path:
        content = "\n".join([self._python.tag, *sorted(pins)])
        return self._rules.folder / hashlib.sha256(content.encode()).hexdigest()[:32]

    def _tidy(self) -> None:
        remove_leftovers(self._rules.folder)
        oldest = self._clock.now().timestamp() - self._rules.keep.total_seconds()
        taken = 0
        for last_use, place in sorted(_by_last_use(self._rules.folder), reverse=True):
            taken += taken_by(place).bytes_
            if last_use < oldest or taken > self._rules.most_bytes_in_all:
                _remove(place)


def _lock_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


def _build_in(place: Path) -> Path:
    [build] = place.iterdir()
    return build


def _by_last_use(folder: Path) -> Iterator[tuple[float, Path]]:
    """Each environment with the Unix time of its last use, or of its build if it was never used."""
    for place in folder.iterdir():
        if KEY.fullmatch(place.name):
            lock = _lock_of(place)
            with suppress(FileNotFoundError):  # another process has just removed it
                yield (lock if lock.exists() else place).stat().st_mtime, place


def _remove(place: Path) -> None:
    """Removes the environment, unless a process uses it."""
    path = _lock_of(place)
    lock = try_lock(path)
    if lock is None:
        return
    try:
        # Moved away first: a process that is killed during the removal must not leave a partial environment in place.
        with suppress(FileNotFoundError):
            removed = place.rename(tempfile.mkdtemp(prefix=WORK, dir=place.parent))
            path.unlink()
            remove_tree(removed)
            log.info("packages_removed", environment=place.name)
    finally:
        os.close(lock)


def modules_in(place: Path) -> list[str]:
    """The top-level names that can be imported from the folder."""
    names = (path.name if path.is_dir() else path.name.partition(".")[0] for path in place.iterdir() if _is_code(path))
    return sorted({name for name in names if name.isidentifier() and name not in NO_MODULES})


def _is_code(path: Path) -> bool:
    return path.is_dir() or path.suffix in (".py", ".so")


OTHERS_MAY_WRITE = 0o022
OTHERS_MAY_PASS = 0o001


async def package_environments(
    process: ProcessContext, python: str, *, for_other_user: bool = False
) -> PackageEnvironments:
    """This machine's environments for the Python at the path `python`; for the process's own if it is empty.

    `for_other_user`: tools run as another user, who must be able to reach the folder. Raises `InvalidRequest`, which
    names the setting.
    """
    rules, uv = package_rules(process.settings), ""
    target = await asyncio.to_thread(target_python, python)
    if rules.index:
        uv = installer()
        prepare(rules.folder, for_other_user=for_other_user)
    return PackageEnvironments(rules, target, PackageBuilder(rules, uv, process.environment), process.clock)


def package_rules(settings: Settings) -> PackageRules:
    """The settings of packages."""
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
    """This user's folder for reproducible files."""
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
    """Creates the folder if it is missing. It contains code of tools, so other users must not be able to write in it.
    Raises `InvalidRequest`."""
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
