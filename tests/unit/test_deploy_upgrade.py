"""An upgrade replaces the workers before the API, on each platform: a newer API may accept what an older worker does
not know. The commands are read where an operator reads them, and held against what `deploy/` has."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.process.settings import Settings
from tests.kit.project.source_tree import ROOT

SYSTEMD = ROOT / "deploy/systemd"
KUBERNETES = ROOT / "deploy/kubernetes"
EXAMPLE = KUBERNETES / "overlays/example/kustomization.yaml"
NAME = "app.kubernetes.io/name"
UPGRADE = (ROOT / "docs/operations/upgrade.md").read_text(encoding="utf-8")
ORDER = ["holdfast-migrate", "holdfast-worker", "holdfast-api"]


def section(title: str) -> str:
    """The commands of one platform in docs/operations/upgrade.md."""
    [found] = re.findall(rf"\n### {title}\n.*?```sh\n(.*?)```", UPGRADE, re.DOTALL)
    return found


def commands(text: str) -> list[str]:
    return [line.strip("# ").partition("  #")[0].strip() for line in text.splitlines() if line.strip("# ")]


def in_overlay() -> list[str]:
    """The commands of the example overlay that are run at each upgrade."""
    text = EXAMPLE.read_text(encoding="utf-8").partition("\napiVersion")[0].partition("at each upgrade")[2]
    return [line for line in commands(text) if line.startswith("kubectl")]


def documents() -> list[dict[str, Any]]:
    base = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text(encoding="utf-8"))
    found = [
        document
        for name in base["resources"]
        for document in yaml.safe_load_all((KUBERNETES / "base" / name).read_text(encoding="utf-8"))
    ]
    # What generators make has no label.
    return [*found, {"kind": "ConfigMap", "metadata": {"name": "holdfast"}}]


def applied(command: str) -> set[tuple[str, str]]:
    """Kind and name of what a `kubectl apply -k . -l '… notin (…)'` applies."""
    selector = re.findall(rf"-l '{re.escape(NAME)} notin \((.*)\)'", command)
    left_out = [name.strip() for name in selector[0].split(",")] if selector else []
    assert bool(selector) == (" -l " in command), f"this test does not understand {command}"
    return {
        (one["kind"], one["metadata"]["name"])
        for one in documents()
        if one["metadata"].get("labels", {}).get(NAME) not in left_out
    }


def first_applied(lines: Iterable[str]) -> Iterator[str]:
    """Pods of the deployment in the order in which the commands apply them; after each, what was waited for."""
    seen: set[tuple[str, str]] = set()
    for line in lines:
        if "kubectl apply" in line:
            now = applied(line) - seen
            pods = sorted(name for kind, name in now if kind in ("Deployment", "Job"))
            assert len(pods) == 1, f"{line} begins {pods} at once"
            yield pods[0]
            seen |= now
        elif waited := re.findall(r"(?:rollout status|wait) .*(?:deployment|job)/([\w-]+)", line):
            yield f"waits for {waited[0]}"
    assert seen == {(one["kind"], one["metadata"]["name"]) for one in documents()}, "something is never applied"


@pytest.mark.parametrize("where", ["overlay", "upgrade.md"])
def test_kubernetes_replaces_the_workers_before_the_api_and_waits_for_each(where: str) -> None:
    lines = in_overlay() if where == "overlay" else commands(section("Kubernetes"))
    assert list(first_applied(lines)) == [word for name in ORDER for word in (name, f"waits for {name}")]
    [deleted] = [line for line in lines if "delete job" in line]
    assert lines.index(deleted) < min(index for index, line in enumerate(lines) if "apply" in line)


def test_the_configuration_is_there_before_the_first_pod_that_reads_it() -> None:
    first = next(line for line in in_overlay() if "kubectl apply" in line)
    assert ("ConfigMap", "holdfast") in applied(first)
    assert ("ServiceAccount", "holdfast") in applied(first)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_the_overlay_makes_what_the_commands_are_held_against() -> None:
    done = subprocess.run(["kubectl", "kustomize", str(EXAMPLE.parent)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = [one for one in yaml.safe_load_all(done.stdout) if one["kind"] != "ConfigMap"]
    labels = {(one["kind"], one["metadata"]["name"]): one["metadata"].get("labels", {}).get(NAME) for one in made}
    written = {
        (one["kind"], one["metadata"]["name"]): one["metadata"].get("labels", {}).get(NAME)
        for one in documents()
        if one["kind"] != "ConfigMap"
    }
    assert labels == written


def test_the_example_asks_for_nothing_that_a_cluster_may_lack() -> None:
    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert "components" not in example, "an autoscaler without prometheus-adapter complains for ever"
    assert "#   - ../../components/autoscaling" in EXAMPLE.read_text(encoding="utf-8")


def test_compose_replaces_the_workers_before_the_api() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    named = [
        service
        for line in commands(section("Compose"))
        for service in line.split()
        if line.startswith("docker compose") and service in services
    ]
    assert named == [name.removeprefix("holdfast-") for name in ORDER]
    for line in commands(section("Compose")):
        if "up" in line.split():
            assert "--no-deps" in line, f"{line} would start what the service depends on, too"


def unit(name: str) -> dict[str, list[str]]:
    """What the lines of a unit say, word by word, by their names."""
    lines: dict[str, list[str]] = {}
    for line in (SYSTEMD / name).read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            lines.setdefault(line.partition("=")[0], []).extend(line.partition("=")[2].split())
    return lines


@pytest.mark.parametrize("name", ["holdfast-api.service", "holdfast-worker@.service"])
def test_a_restart_of_the_migration_ends_no_process(name: str) -> None:
    """`Requires=` hands a restart of the migration on: the API and all workers were ended at once."""
    lines = unit(name)
    handed_on = ("Requires", "Requisite", "BindsTo", "PartOf", "StopPropagatedFrom")
    assert [key for key in handed_on if "holdfast-migrate.service" in lines.get(key, [])] == []
    assert "holdfast-migrate.service" in lines["Wants"]
    assert "holdfast-migrate.service" in lines["After"], "at the start of the machine the migration is first"


def test_systemd_restarts_the_workers_before_the_api() -> None:
    restarted = [
        name.partition("@")[0]
        for line in commands(section("systemd"))
        if "systemctl restart" in line
        for name in line.split("systemctl restart")[1].split()
    ]
    assert list(dict.fromkeys(restarted)) == ORDER
    for line in commands(section("systemd")):
        assert line.count("holdfast-worker@") < 2, "one after the other: the others work on"


@pytest.mark.parametrize("instance", [*map(str, range(1, 100)), "01", "08", "099"])
def test_every_worker_of_systemd_has_a_port_of_its_own(tmp_path: Path, instance: str) -> None:
    """`910%i` made port 91010 of @10: the worker ended with status 2 and stayed down."""
    port = started_with(tmp_path, instance, {})
    assert port == str(9100 + int(instance))
    assert Settings(worker_port=int(port)).worker_port < 65_536


def test_a_port_of_the_environment_goes_before_that_of_the_unit(tmp_path: Path) -> None:
    assert started_with(tmp_path, "10", {"HOLDFAST_WORKER_PORT": "7000"}) == "7000"


def started_with(folder: Path, instance: str, environment: dict[str, str]) -> str:
    """Runs the unit's line as systemd would, with a program in the place of ours; the port that it is given."""
    program = folder / "holdfast"
    program.write_text('#!/bin/sh\n[ "$*" = worker ] && printf %s "$HOLDFAST_WORKER_PORT"\n')
    program.chmod(0o755)
    text = (SYSTEMD / "holdfast-worker@.service").read_text(encoding="utf-8")
    [line] = re.findall(r"^ExecStart=/bin/sh -c '(.*)'$", text, re.MULTILINE)
    script = line.replace("%i", instance).replace("$$", "$").replace("/opt/holdfast/bin/holdfast", str(program))
    assert "%" not in script, "systemd would put something in its place"
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", **environment},
    )
    return done.stdout
