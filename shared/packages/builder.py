"""Finds out which packages a tool needs, and installs them, with uv. Only wheels are taken, which are unpacked: nothing
that comes from an index is run outside of a tool's walls.
"""

import asyncio
import errno
import re
import signal
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from shared.domain.errors import InvalidRequest, Unavailable
from shared.domain.packages import PackageRules
from shared.packages.bounded_program import Finished, run_bounded, too_large
from shared.packages.locked_files import WorkFolder, work_folder

AT_ONCE = 2
"""Builds of one process."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
LONGEST_REASON = 600
COMMON = (
    *("--quiet", "--color", "never", "--no-config", "--no-cache", "--system-certs", "--no-python-downloads"),
    *("--no-sources", "--only-binary", ":all:"),
)
"""No settings of this machine, nothing kept, and no package that would have to be built."""
LOOK = (
    "import sys, sysconfig; "
    "print(sys.implementation.cache_tag, sysconfig.get_platform(), sysconfig.get_config_var('EXT_SUFFIX'))"
)
_URL = re.compile(r"\w+://[^\s`'\")>]+")
_PREFIX = re.compile(r"^(?:error|cause|hint|warning): *")
_AWAY = ("Failed to fetch", "Failed to download", "Request failed after", "error sending request")
_OPTIONS = re.compile(r" \(i\.e\., with `[^`]*`\)| Consider adding .*")
"""What uv advises to those who run it."""
TOO_LARGE = f"os error {errno.EFBIG}"


class TargetPython(msgspec.Struct, frozen=True):
    """The Python that packages are for."""

    executable: str
    tag: str
    """Its version and the kind of machine: files for one tag work with each Python of that tag."""


def target_python(executable: str) -> TargetPython:
    """The Python at this path; this process's own for an empty one. Raises `InvalidRequest` when there is none."""
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
    """Runs uv, at most twice at once."""

    def __init__(self, rules: PackageRules, uv: str, environment: Mapping[str, str]) -> None:
        """`uv`: the path of its program. Of `environment` only the names of proxies are read."""
        self._rules = rules
        self._uv = uv
        self._proxies = {name: value for name, value in environment.items() if name.upper() in PROXIES}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def resolved(self, requirements: Sequence[str], python: TargetPython) -> list[str]:
        """Every package that these lines need, as `name==version`, sorted. Raises `InvalidRequest` that says why it
        cannot be, `Unavailable` when the index does not answer."""
        async with self._work(requirements) as work:
            pins = work.path / "pins"
            asked = ("compile", "--no-header", "--no-annotate", "--output-file", str(pins), "requirements")
            await self._run(work, python, *asked)
            return sorted(line for line in pins.read_text().splitlines() if line)

    async def install(self, pins: Sequence[str], python: TargetPython, place: Path) -> None:
        """Puts these packages into the only folder of a new folder `place`, which then appears as a whole and is
        read-only. The inner folder has a name that no other one has had. Raises as `resolved` does."""
        async with self._work(pins) as work:
            made = work.path / "packages"
            build = made / work.path.name
            asked = ("install", "--compile-bytecode", "--target", str(build), "-r", "requirements")
            await self._run(work, python, *asked)
            await asyncio.to_thread(_seal, build)
            # At once, without a wait in between: a build that is cancelled has made either nothing or all of it.
            _publish(made, place)

    @asynccontextmanager
    async def _work(self, lines: Sequence[str]) -> AsyncGenerator[WorkFolder]:
        async with self._places, work_folder(self._rules.folder) as work:
            (work.home / "requirements").write_text("".join(f"{line}\n" for line in lines))
            if self._rules.ca_file:
                (work.home / "certificates").write_text(await asyncio.to_thread(_certificates, self._rules.ca_file))
            yield work

    async def _run(self, work: WorkFolder, python: TargetPython, *arguments: str) -> None:
        # The index goes by the environment: command lines can be read by everybody on the machine.
        environment = {"UV_DEFAULT_INDEX": self._rules.index, "UV_HTTP_RETRIES": "1", **self._proxies}
        command = [self._uv, "pip", *arguments, *COMMON, "--python", python.executable]
        if self._rules.ca_file:
            command += ["--cert", "certificates"]
        ended = await run_bounded(command, work, environment, self._rules.room)
        if ended.status:
            raise _refusal(ended, work.path, self._rules.room.bytes_)


def _refusal(ended: Finished, work: Path, most_bytes: int) -> InvalidRequest | Unavailable:
    """What went wrong, in uv's words, without addresses: the index's may hold a password."""
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
    """Makes everything in the folder read-only, for everybody, and removes what is neither file nor folder."""
    (top / ".lock").unlink(missing_ok=True)
    for path in (*top.rglob("*"), top):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            path.unlink()
        else:
            path.chmod(0o555 if path.is_dir() else 0o444)


def _publish(made: Path, place: Path) -> None:
    made.rename(place)
    place.chmod(0o555)  # behind the move, which writes in it


def _certificates(ca_file: str) -> str:
    """The system's certificates and those of the file, for a program that takes either these or those."""
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=ca_file)
    return "".join(map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True)))
