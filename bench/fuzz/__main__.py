"""Fuzzes the parsers and the API, and reports wrong answers. Exit status 1: an answer was wrong.

First it repeats the property tests of parsers of foreign input (ids, cursors, arguments, tool source, agent files,
models' streams) with new examples. Then schemathesis generates requests from our OpenAPI document for each set-up: no
answer may be a 5xx, and each must match the document. Everything listens on loopback.
"""

import argparse
import asyncio
import json
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvloop

from bench.deployments import Deployment, embedded, services

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).parent / "schemathesis.toml"
KEY = "key-of-the-fuzzer"
ENVIRONMENT = {
    "HOLDFAST_API_KEYS": f"default={KEY}",
    "HOLDFAST_BUILTIN_MODELS": "true",
    "HOLDFAST_DOCS": "on",
    "HOLDFAST_TRUSTED_PROXIES": "127.0.0.1",
}
OPERATIONS = 125
"""About the number of the document's operations, by which the requested cases are divided."""
FOUND, SUMMARY = re.compile(r"=+ (FAILURES|ERRORS) =+"), re.compile(r"=+ SUMMARY =+")
LONGEST_LINE = 1 << 24
PROPERTIES = "tests/contract/test_hostile_texts.py", "tests/contract/test_hostile_streams.py"


SHOWN_LINES, SHOWN_CHARACTERS = 120, 600
"""How much of the findings is printed at the end. The report has all of them."""


class Outcome(NamedTuple):
    """The result of the requests to one set-up."""

    cases: int
    found: str = ""
    """The operations with wrong answers, how to repeat the requests, and the command that finds them again."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="requests to each set-up (default: 2000)")
    parser.add_argument("--seconds", type=int, default=0, help="seconds for each set-up; 0: until all cases were sent")
    parser.add_argument("--minutes", type=float, default=1.0, help="minutes of the property tests (default: 1)")
    parser.add_argument("--shape", choices=["embedded", "services", "both"], default="both")
    parser.add_argument("--seed", type=int, default=None, help="seed of the examples (default: random)")
    parser.add_argument("--postgres", default="postgresql://127.0.0.1/test", help="a server to make a database on")
    sys.exit(0 if uvloop.run(fuzz(parser.parse_args())) else 1)


async def fuzz(options: argparse.Namespace) -> bool:
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    print(f"seed {seed}", flush=True)
    is_clean, results = options.minutes <= 0 or await _properties(seed, options.minutes), list[str]()
    for shape in ["embedded", "services"] if options.shape == "both" else [options.shape]:
        directory = Path(tempfile.mkdtemp(prefix=f"holdfast-fuzz-{shape}-"))
        async with _deployed(shape, directory, options.postgres) as deployment:
            outcome = await _requests(shape, deployment.client.url, directory, seed, options)
            dead = [name for name, process in deployment.processes.items() if not process.is_running()]
        said = "NOT CLEAN" if outcome.found else "clean"
        results.append(f"{shape}: {outcome.cases} cases, {said}; {directory}")
        results += [outcome.found] if outcome.found else []
        results += [f"{shape}: ended: {', '.join(dead)}"] if dead else []
        is_clean = is_clean and not outcome.found and not dead
    print("\n".join(results), flush=True)  # last, because a truncated log keeps its end
    return is_clean


def _deployed(shape: str, directory: Path, postgres: str) -> AbstractAsyncContextManager[Deployment]:
    return embedded(directory, ENVIRONMENT) if shape == "embedded" else services(directory, ENVIRONMENT, postgres)


async def _properties(seed: int, minutes: float) -> bool:
    """Repeats the property tests with many examples until the time is over."""
    ends, rounds = time.monotonic() + minutes * 60, 0
    while time.monotonic() < ends:
        command = [sys.executable, "-m", "pytest", "-q", *PROPERTIES, f"--hypothesis-seed={seed + rounds}"]
        if await _run([*command, "--timeout=3600"], {"HOLDFAST_FUZZ_EXAMPLES": "20"}) != 0:
            return False
        rounds += 1
    print(f"property tests: {rounds} rounds, clean", flush=True)
    return True


async def _requests(shape: str, url: str, directory: Path, seed: int, options: argparse.Namespace) -> Outcome:
    """Repeats schemathesis until it has sent the requested number of cases, or the time is over."""
    cases: int = 0
    await _have_document_made(url)
    ends = time.monotonic() + (options.seconds or 24 * 3600)
    while cases < options.cases and time.monotonic() + 1 < ends:
        report, output = directory / f"report-{cases}.json", directory / f"report-{cases}.txt"
        again = f"--shape {shape} --cases {options.cases - cases} --seed {seed + cases} --minutes 0"
        each = max(1, -(-(options.cases - cases) // OPERATIONS))
        command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG), "run"]
        command += [f"{url.rstrip('/')}/openapi.json", "-n", str(each), "--seed", str(seed + cases), "--no-color"]
        command += ["--report", "json", "--report-json-path", str(report)]
        if options.seconds:
            command += ["--max-time", str(int(ends - time.monotonic()))]
        status = await _run(command, {"HOLDFAST_FUZZ_URL": url.rstrip("/"), "HOLDFAST_FUZZ_KEY": KEY}, output)
        told: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
        cases += told["test_cases"]["generated"] if told else 0
        if status != 0 or not told or told["errors"]:
            return Outcome(cases, f"{_what_was_found(output)}\nagain: python -m bench.fuzz {again}; whole: {output}")
    return Outcome(cases)


async def _have_document_made(url: str) -> None:
    """Requests the OpenAPI document once: a server makes it for the first request, which may take longer on a busy
    machine than the 10 s that schemathesis waits."""
    async with httpx.AsyncClient(timeout=120, headers={"Authorization": f"Bearer {KEY}"}) as http:
        (await http.get(f"{url.rstrip('/')}/openapi.json")).raise_for_status()


def _what_was_found(output: Path) -> str:
    """Returns schemathesis' text of each failure and error: operation, status, answer, and a command that repeats the
    request."""
    lines = output.read_text(errors="replace").splitlines()
    headings = [number for number, line in enumerate(lines) if FOUND.fullmatch(line)]
    ends = [number for number, line in enumerate(lines) if SUMMARY.fullmatch(line)]
    told = lines[headings[0] : ends[-1]] if headings and ends else lines[-SHOWN_LINES:]
    return "\n".join(line[:SHOWN_CHARACTERS] for line in told[:SHOWN_LINES])


async def _run(command: list[str], environment: Mapping[str, str], output: Path | None = None) -> int:
    """Runs a command. Shows its output at once and writes it to `output`. Returns the exit status."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=None if output is None else asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
    )
    try:
        if output is not None and process.stdout is not None:
            with output.open("wb") as kept:
                async for line in process.stdout:
                    kept.write(line)
                    sys.stdout.buffer.write(line)
                    sys.stdout.buffer.flush()
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    main()
