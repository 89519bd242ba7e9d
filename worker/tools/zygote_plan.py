"""How a zygote is started: its command line, its program, and what its calls may see."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shared.domain.tools import SandboxTier
from worker.tools.interpreter import Interpreter
from worker.tools.node_program import NodeProgram

INSIDE = Path(__file__).parent / "inside"
PROGRAM = (
    *("child_objects", "child_call", "child_seccomp", "child_walls", "child_network", "child_node", "child_stdlib"),
    "child_zygote",
)
BOOTSTRAP = """
import json, sys, types
with open(int(sys.argv[1]), encoding="utf-8") as file:
    program = json.load(file)
for name, source in program["modules"].items():
    if name == "child_stdlib" and not program["plan"]["preload"]:
        continue
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = name + ".py"
    exec(compile(source, module.__file__, "exec"), module.__dict__)
sys.modules["child_zygote"].main(program["plan"], int(sys.argv[2]), int(sys.argv[3]))
"""
"""The first code of a zygote: makes modules of the texts that the worker has sent."""

ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8"}
"""All that a zygote and bubblewrap get: what they were started with can be read in /proc."""


CERTIFICATES = "/etc/ssl/cert.pem"
"""Where calls with a network find whom to trust."""
RUN_FOLDERS, RUN_FOLDER = "/run-folders", "/run-folder"
"""Where a zygote in tier 1 sees the folders of all of its project's runs, and where a call finds that of its own."""


class ZygotePlan(msgspec.Struct, frozen=True):
    """What a worker wants of its zygotes."""

    tier: SandboxTier
    interpreter: Interpreter
    scratch_bytes: int
    user: tuple[int, int] | None = None
    """User and group of the tools, when the worker is root."""
    node: NodeProgram | None = None
    """What JavaScript calls become; None: there are none."""
    folders: tuple[str, ...] = ()
    """Folders of packages that calls may read, and import from."""
    preload: bool = True
    """Load the parts of the standard library that tools use most before the first call."""

    network: bool = False
    """Each call gets a proxy's socket, the only thing that it can connect to."""
    certificates: str = ""
    """A file of the certificate authorities that calls with a network are shown."""
    runs: str = ""
    """The folder with those of a project's runs, for the zygote of calls that have one, in tier 1."""

    @property
    def readable(self) -> list[str]:
        """The files and folders that a call may read, by the names that it has for them."""
        return [*self.interpreter.readable, *self.folders_inside, *([CERTIFICATES] if self.network else [])]

    @property
    def folders_inside(self) -> list[str]:
        """`folders` by the names that a call has for them: in a file system of its own, none is hidden by another."""
        if self.tier is not SandboxTier.ONE:
            return list(self.folders)
        return [f"/packages/{number}" for number, _ in enumerate(self.folders)]

    def command(self, program: int, control: int, proc: int) -> list[str]:
        """The command line. The numbers are descriptors that the process inherits."""
        python = [self.interpreter.executable, "-I", "-S", "-B", "-c", BOOTSTRAP]
        return [*self._bubblewrap(), *python, str(program), str(control), str(proc)]

    def program(self) -> bytes:
        """What the bootstrap reads."""
        namespaces = self.tier is SandboxTier.ONE
        plan = {
            "namespaces": namespaces,
            "user": self.user,
            "worker": 0 if namespaces else os.getpid(),
            "readable": self.readable,
            "scratch_bytes": self.scratch_bytes,
            "preload": self.preload,
            "node": self.node.for_child() if self.node else None,
            "network": self.network,
            "certificates": CERTIFICATES,
            "run_folders": RUN_FOLDERS,
            "run_folder": RUN_FOLDER,
        }
        wanted = [name for name in PROGRAM if self.network or name != "child_network"]
        modules = {name: (INSIDE / f"{name}.py").read_text(encoding="utf-8") for name in wanted}
        return json.dumps({"plan": plan, "modules": modules}).encode()

    def _bubblewrap(self) -> list[str]:
        """The outer walls of tier 1: a file system with nothing but what tools may read, no network, no process of
        the machine. As root without a user namespace, whose only user would be root again: the zygote gives root up
        itself, and is left no other capability than those that it takes."""
        if self.tier is not SandboxTier.ONE:
            return []
        shared = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        user = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if self.user else ["--unshare-user"]
        shown = [(path, path) for path in (self.interpreter.executable, *self.interpreter.readable)]
        if self.node:
            above = self.interpreter.readable
            shown += [(path, path) for path in self.node.files if not any(path.startswith(f"{one}/") for one in above)]
        shown += zip(self.folders, self.folders_inside, strict=True)
        shown += [(self.certificates, CERTIFICATES)] if self.network else []
        runs = ["--bind", self.runs, RUN_FOLDERS, "--dir", RUN_FOLDER] if self.runs else []
        return [
            *(bubblewrap() or "bwrap", *shared, "--die-with-parent", "--new-session", "--hostname", "tools"),
            *("--cap-drop", "ALL", *user, *_binds(shown), *runs),
            *("--dir", "/tmp", "--chdir", "/", "--remount-ro", "/", "--"),  # noqa: S108 - inside the jail
        ]


def bubblewrap() -> str | None:
    """Its path, if it is installed."""
    return shutil.which("bwrap") or shutil.which("bwrap", path=os.defpath)


def _binds(shown: Sequence[tuple[str, str]]) -> list[str]:
    """Options that show these files and folders, each under the second of its names, read-only, and the links by which
    the system reaches its own."""
    devices = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
    # What bubblewrap makes unasked above a path is root's alone.
    above = sorted(
        {str(parent) for path in (*devices, *(inside for _, inside in shown)) for parent in Path(path).parents} - {"/"}
    )
    options = [part for folder in above for part in ("--dir", folder)]
    options += [part for device in devices for part in ("--dev-bind", device, device)]
    options += [part for path, inside in shown for part in ("--ro-bind", path, inside)]
    for link in ("/lib", "/lib64", "/bin"):
        if Path(link).is_symlink():
            options += ["--symlink", str(Path(link).readlink()), link]
    return options
