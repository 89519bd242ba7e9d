"""What the Dockerfile copies is what .dockerignore lets in and what the wheel is made of. `.ci/image` builds it."""

import ast
import fnmatch
import shlex
import tomllib
from collections.abc import Sequence

import pytest

from tests.kit.project.source_tree import PRODUCT_PACKAGES, ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8")


def copied(dockerfile: str) -> list[str]:
    """What the Dockerfile takes of its context, in order."""
    lines = [shlex.split(line) for line in dockerfile.replace("\\\n", " ").splitlines() if line.startswith("COPY ")]
    taken = [words[1:-1] for words in lines if not any(word.startswith("--from=") for word in words)]
    return [source for sources in taken for source in sources if not source.startswith("--")]


def is_let_in(path: str, ignored: str) -> bool:
    """Whether a file gets into the context: the last line that matches it, or a folder above it, counts."""
    places = ["/".join(path.split("/")[: length + 1]) for length in range(path.count("/") + 1)]
    let_in = True
    for line in ignored.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        excepted, pattern = pattern.startswith("!"), pattern.removeprefix("!")
        if any(_matches(place, pattern) for place in places):
            let_in = excepted
    return let_in


def _matches(path: str, pattern: str) -> bool:
    anywhere = pattern.removeprefix("**/")
    parts, wanted = path.split("/"), anywhere.split("/")
    if anywhere != pattern:
        parts = parts[-len(wanted) :]
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def files_below(source: str) -> list[str]:
    place = ROOT / source
    found = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return [path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts]


def kept_out(sources: Sequence[str], ignored: str) -> list[str]:
    """Files that a COPY names and the context lacks."""
    return [path for source in sources for path in files_below(source) or [source] if not is_let_in(path, ignored)]


def made_of() -> set[str]:
    """What building the wheel reads: the packages of setup.py, and the files that pyproject.toml names."""
    setup = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (packages,) = (
        ast.literal_eval(line.value) for line in setup.body if isinstance(line, ast.Assign) and _is_product(line)
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"holdfast", *packages, "pyproject.toml", "setup.py", project["readme"], *project["license-files"]}


def _is_product(line: ast.Assign) -> bool:
    return [ast.unparse(name) for name in line.targets] == ["PRODUCT"]


def test_a_folder_that_the_dockerfile_copies_was_kept_out_of_its_context() -> None:
    """`cli` was, for two days, and no image could be built."""
    assert kept_out(copied(DOCKERFILE), IGNORED) == []


def test_a_package_of_the_wheel_is_copied() -> None:
    assert made_of() == {"holdfast", *PRODUCT_PACKAGES, "pyproject.toml", "setup.py", "README.md", "LICENSE"}
    assert made_of() - set(copied(DOCKERFILE)) == set()


def test_nothing_else_enters_the_context() -> None:
    let_in = {path.name for path in ROOT.iterdir() if is_let_in(path.name, IGNORED)}
    assert let_in == set(copied(DOCKERFILE))
    assert not is_let_in(".env", IGNORED)
    assert not is_let_in("secrets/encryption_key", IGNORED)
    assert not is_let_in("api/__pycache__/main.cpython-313.pyc", IGNORED)


@pytest.mark.parametrize("package", ["holdfast", *PRODUCT_PACKAGES])
def test_a_package_that_is_kept_out_is_found(package: str) -> None:
    without = IGNORED.replace(f"!{package}\n", "")
    assert set(kept_out(copied(DOCKERFILE), without)) == set(files_below(package))
    assert package in made_of() - set(copied(DOCKERFILE.replace(f"COPY {package} {package}\n", "")))


@pytest.mark.parametrize(
    ("line", "path"),
    [("api/main.py", "api/main.py"), ("**/*.lua", "shared/redis/claim.lua"), ("*/console", "api/console/files.py")],
)
def test_a_later_line_that_takes_a_file_out_is_found(line: str, path: str) -> None:
    assert is_let_in(path, IGNORED)
    assert not is_let_in(path, f"{IGNORED}{line}\n")


def test_both_stages_have_one_base() -> None:
    """It can be named by its digest in one place."""
    bases = [line.split()[1] for line in DOCKERFILE.splitlines() if line.startswith("FROM ")]
    assert bases == ["${PYTHON_IMAGE}"] * 2


def test_every_stage_copies_out_of_one_that_there_is() -> None:
    lines = DOCKERFILE.splitlines()
    stages = {line.split()[-1] for line in lines if line.startswith("FROM ") and " AS " in line}
    taken = {word.removeprefix("--from=") for line in lines for word in line.split() if word.startswith("--from=")}
    assert taken == stages
    assert not [line for line in lines if line.startswith("ADD ")]
    assert "constraints.txt" in copied(DOCKERFILE)
