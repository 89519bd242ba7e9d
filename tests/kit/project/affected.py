"""Which test files a change can break, by what they import: `make test-affected`.

A file is affected when it imports a changed file, directly or through others. A text that is the name of a module
counts as an import of it, because commands and wires load modules by their names. A file that is not Python counts as
its folder's modules; a file that every test uses (dependencies, the settings of pytest) affects all of them.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from tests.kit.project.source_tree import (
    ROOT,
    Source,
    bench_sources,
    imported_modules,
    product_sources,
    suite_sources,
)

EVERYTHING = ("pyproject.toml", "constraints.txt", "setup.py", "tests/conftest.py", "tests/__init__.py")
DOCUMENT_TESTS = "tests/e2e/test_documentation.py"
PAGE_TESTS = ("tests/browser/", "tests/contract/test_console")
PAGES = "api/console/web/"


def affected_tests(changed: Iterable[str], sources: Iterable[Source]) -> list[str]:
    """The test files, by their paths from the checkout, that a change of these files can break."""
    modules = {source.module: source for source in sources}
    tests = sorted(source.path for source in modules.values() if _is_test(source.path))
    paths = list(changed)
    if any(path in EVERYTHING for path in paths):
        return tests
    hit = set(_importers({module for path in paths for module in _modules_of(path, modules)}, modules))
    found = {modules[module].path for module in hit}
    folders = [path.removesuffix("conftest.py") for path in found if path.endswith("/conftest.py")]
    if any(path.endswith(".md") for path in paths):
        found.add(DOCUMENT_TESTS)
    if any(path.startswith(PAGES) for path in paths):
        folders += PAGE_TESTS
    return [test for test in tests if test in found or test.startswith(tuple(folders))]


def _is_test(path: str) -> bool:
    return PurePosixPath(path).name.startswith("test_") and not path.startswith("tests/architecture/")


def _modules_of(path: str, modules: Mapping[str, Source]) -> Iterator[str]:
    """The modules that change with a file: itself, or all of its folder, whose code may read it."""
    if path.endswith(".py"):
        yield path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return
    folder = str(PurePosixPath(path).parent)
    if not path.startswith(PAGES) and folder != ".":
        yield from (name for name, source in modules.items() if str(PurePosixPath(source.path).parent) == folder)


def _importers(changed: set[str], modules: Mapping[str, Source]) -> set[str]:
    """The changed modules and all that import them, however far away."""
    importers: dict[str, set[str]] = {}
    for name, source in modules.items():
        named = {one for one in _texts(source) if one in modules}
        for target in {*imported_modules(source, modules), *named}:
            importers.setdefault(target, set()).add(name)
    found, waiting = set[str](), list(changed)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += importers.get(name, ())
    return found & modules.keys()


def _texts(source: Source) -> Iterator[str]:
    return (node.value for node in source.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def changed_files(base: str) -> list[str]:
    """The files that differ from a commit, with those that git does not know yet."""
    listed = (["diff", "--name-only", base], ["ls-files", "--others", "--exclude-standard"])
    return [path for words in listed for path in _git(*words).splitlines()]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Prints the test files for `python -m tests.kit.project.affected BASE`, one a line."""
    base = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    changed = changed_files(base)
    tests = affected_tests(changed, [*product_sources(), *suite_sources(), *bench_sources()])
    print(f"{len(changed)} files differ from {base}: {len(tests)} test files can break", file=sys.stderr)
    sys.stdout.writelines(f"{test}\n" for test in tests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
