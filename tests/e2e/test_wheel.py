"""What `pip install` of a wheel gives: one name, and commands that work whatever else has the names of our packages."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from tests.kit.free_ports import free_port
from tests.kit.project.source_tree import PRODUCT_PACKAGES, ROOT, product_sources
from tests.kit.wait_until import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "holdfast", *PRODUCT_PACKAGES)
FOREIGN = "raise RuntimeError('this is a package of somebody else')\n"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


@dataclass(frozen=True)
class Installation:
    """A Python that has the wheel, and everything else under our names; `elsewhere` is a project that has them too."""

    wheel: Path
    bin: Path
    elsewhere: Path

    def run(self, *command: str) -> str:
        """What a command prints that ends well."""
        done = subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.elsewhere,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
        database = f"sqlite:///{self.elsewhere / 'holdfast.db'}"
        return clean | {"PYTHONPATH": str(self.elsewhere), "HOLDFAST_DATABASE_URL": database}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    directory = tmp_path_factory.mktemp("wheel")
    sources, venv, elsewhere = directory / "sources", directory / "venv", directory / "elsewhere"
    sources.mkdir()
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, sources)
    offline = ("--no-index", "--no-deps")
    subprocess.run([*PIP, "wheel", *offline, "--no-build-isolation", "-w", directory, sources], check=True, timeout=150)
    wheel = next(directory.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    subprocess.run([*PIP, "--python", venv / "bin/python", "install", *offline, wheel], check=True, timeout=60)
    packages = next(venv.glob("lib/python*/site-packages"))
    # What ours depends on is where it is. A .pth file there, which would lead to this checkout, is not read.
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path) + "\n")
    for folder in (packages, elsewhere):
        for name in (*PRODUCT_PACKAGES, "tests"):
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").write_text(FOREIGN)
    return Installation(wheel, venv / "bin", elsewhere)


@pytest.fixture
def port(installation: Installation, tmp_path: Path) -> Iterator[int]:
    """Where `holdfast dev` of the installation listens."""
    number = free_port()
    environment = installation.environment()
    del environment["HOLDFAST_DATABASE_URL"]
    server = subprocess.Popen(
        [installation.bin / "holdfast", "dev", "--port", str(number), "--data-dir", tmp_path / "data"],
        cwd=installation.elsewhere,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    yield number
    server.terminate()
    server.wait(timeout=60)


def test_a_wheel_has_one_name_and_every_file_of_the_product(installation: Installation) -> None:
    names = set(zipfile.ZipFile(installation.wheel).namelist())
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"holdfast"}
    assert {f"holdfast/product/{source.path}" for source in product_sources()} <= names
    scripts = [path.relative_to(ROOT).as_posix() for name in PRODUCT_PACKAGES for path in (ROOT / name).rglob("*.lua")]
    assert scripts
    assert {f"holdfast/product/{path}" for path in scripts} <= names
    page = [path.relative_to(ROOT).as_posix() for path in (ROOT / "api/console/web").rglob("*") if path.is_file()]
    assert "api/console/web/index.html" in page
    assert {f"holdfast/product/{path}" for path in page} <= names


def test_an_installation_from_the_file_alone_has_what_it_needs(installation: Installation) -> None:
    """`uvx --from FILE` and `pipx run --spec FILE` name no extra. CI starts it so, with packages of its own."""
    with zipfile.ZipFile(installation.wheel) as wheel:
        (about,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        required = message_from_bytes(wheel.read(about)).get_all("Requires-Dist", [])
        (scripts,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
        assert "holdfast = holdfast.__main__:main" in wheel.read(scripts).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {str(Requirement(text)) for text in required if "extra ==" not in text}
    assert wanted == {str(Requirement(text)) for text in project["dependencies"]}


def test_the_source_distribution_makes_the_same_wheel(installation: Installation) -> None:
    sources, made = installation.wheel.parent / "sources", installation.wheel.parent / "archive"
    build = f"from setuptools import build_meta; print(build_meta.build_sdist({str(made)!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=sources, check=True, capture_output=True, text=True)
    with tarfile.open(made / done.stdout.split()[-1]) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    files = {name for name in zipfile.ZipFile(installation.wheel).namelist() if ".dist-info/" not in name}
    assert {name.removeprefix("holdfast/product/") for name in files} <= packed
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= packed


def test_a_health_check_does_not_wait_for_the_product_to_be_imported(installation: Installation) -> None:
    asked = "import sys, holdfast.health; print(sorted({'cli', 'typer', 'pydantic', 'shared'} & set(sys.modules)))"
    assert installation.run("python", "-I", "-c", asked) == "[]\n"


def test_commands_work_beside_packages_of_the_same_names(installation: Installation) -> None:
    assert installation.run("holdfast", "--version").startswith("holdfast ")
    assert installation.run("python", "-m", "holdfast", "--version").startswith("holdfast ")
    assert "the database is at revision" in installation.run("holdfast", "migrate")


async def test_the_whole_product_works_beside_packages_of_the_same_names(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

        async def is_ready() -> bool:
            try:
                return (await client.get("/readyz?full")).is_success
            except httpx.TransportError:
                return False

        await wait_until(is_ready, description="holdfast dev to be ready")
        agent = (await client.post("/v1/agents", json={"model": "builtin/echo"})).json()
        sent = {"messages": [{"role": "user", "content": "hello"}]}
        answer = await asyncio.wait_for(client.post(f"/v1/agents/{agent['id']}/messages", json=sent), 60)
    assert "hello" in answer.text


def test_no_message_sends_anybody_to_a_package_of_somebody_else() -> None:
    """Another project has the name `holdfast` in the index of Python packages."""
    documents = (path for pattern in ("*.md", "docs/**/*.md", "packages/*/*.md") for path in ROOT.glob(pattern))
    texts = [*product_sources(), *(path.read_text() for path in documents)]
    told = [re.findall(r"pip install [^\n`]*", text if isinstance(text, str) else text.text) for text in texts]
    assert [command for commands in told for command in commands if re.search(r"[\s'\"]holdfast\b", command)] == []
