"""deploy/systemd and deploy/kubernetes: names that fit, probes of paths that are served, time enough to drain."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.http_server import STREAMS_END_S
from api.routes import health
from shared.process.settings import Settings
from tests.kit.project.source_tree import ROOT
from worker.main import HAND_OVER_S
from worker.queue.queue_worker import UNWIND_S

SYSTEMD = ROOT / "deploy/systemd"
KUBERNETES = ROOT / "deploy/kubernetes"
SETTINGS = {f"HOLDFAST_{name.upper()}" for name in Settings.model_fields}
COMMANDS = {"api", "worker", "migrate"}
SECRETS = {
    f"HOLDFAST_{name}" for name in ("DATABASE_URL", "REDIS_URL", "ENCRYPTION_KEY", "API_KEYS", "CALLBACK_SECRET")
}
HAND_OVER = HAND_OVER_S + UNWIND_S
WORKER_PATHS = set(re.findall(r'case b"(/\w+)"', (ROOT / "worker/health_port.py").read_text(encoding="utf-8")))
API_PATHS = {getattr(route, "path", "") for route in health.router.routes}
NO_PART_OF_KUSTOMIZE = {"prometheus-adapter.yaml"}


def manifests(folder: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each file of a kustomization with what it says, as the kustomization lists them."""
    place = KUBERNETES / folder
    listed = yaml.safe_load((place / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    for name in listed:
        for document in yaml.safe_load_all((place / name).read_text(encoding="utf-8")):
            yield place / name, document


BASE = [document for _, document in manifests("base")]
PODS: dict[str, dict[str, Any]] = {
    one["metadata"]["name"]: one["spec"]["template"] for one in BASE if one["kind"] in ("Deployment", "Job")
}


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in BASE if one["kind"] == kind]


def container(name: str) -> dict[str, Any]:
    (only,) = PODS[name]["spec"]["containers"]
    return only


def variables(name: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in container(name)["env"]}


def test_every_manifest_is_part_of_a_kustomization() -> None:
    listed = {path for folder in ("base", "components/autoscaling") for path, _ in manifests(folder)}
    found = {path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml"}
    assert {path.name for path in found - listed} == NO_PART_OF_KUSTOMIZE
    example = yaml.safe_load((KUBERNETES / "overlays/example/kustomization.yaml").read_text(encoding="utf-8"))
    for name in example["resources"]:
        assert (KUBERNETES / "overlays/example" / name / "kustomization.yaml").is_file()


def test_selectors_find_the_pods_they_are_for() -> None:
    for one in of_kind("Deployment"):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        for spread in one["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
    selected = [one["spec"]["selector"] for one in of_kind("Service")]
    selected += [one["spec"]["selector"]["matchLabels"] for one in of_kind("PodDisruptionBudget")]
    assert len(selected) == 3
    for labels in selected:
        assert [name for name, pod in PODS.items() if labels.items() <= pod["metadata"]["labels"].items()] == list(
            labels.values()
        )


@pytest.mark.parametrize("name", PODS)
def test_pods_need_no_rights(name: str) -> None:
    pod = PODS[name]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == int(
        re.findall(r"useradd --uid (\d+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))[0]
    )
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "HOLDFAST_WORKER_PORT would become tcp://…"
    inside = container(name)["securityContext"]
    assert (inside["allowPrivilegeEscalation"], inside["capabilities"]["drop"]) == (False, ["ALL"])
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container(name)["volumeMounts"]} == volumes
    assert "memory" in container(name)["resources"]["limits"]


@pytest.mark.parametrize("name", PODS)
def test_variables_are_settings_and_secrets_are_named_only(name: str) -> None:
    assert container(name)["args"][0] in COMMANDS
    assert variables(name).keys() <= SETTINGS
    for variable, said in variables(name).items():
        assert ("valueFrom" in said) is (variable in SECRETS), variable
    assert ("HOLDFAST_API_KEYS" in variables(name)) is (name == "holdfast-api"), "a worker's user runs tools"


@pytest.mark.parametrize(("name", "served"), [("holdfast-api", API_PATHS), ("holdfast-worker", WORKER_PATHS)])
def test_probes_ask_for_paths_that_are_served(name: str, served: set[str]) -> None:
    only = container(name)
    ports = {port["name"]: port["containerPort"] for port in only["ports"]}
    expected = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    for probe, path in expected.items():
        asked = only[probe]["httpGet"]
        assert asked["path"] == path
        assert path in served
        assert asked["port"] in ports
    patience_s = only["livenessProbe"]["periodSeconds"] * only["livenessProbe"]["failureThreshold"]
    assert patience_s >= 10 * Settings.model_fields["lease_s"].default, "a worker keeps its runs for so long"


def test_ports_are_those_that_processes_listen_on() -> None:
    (service,) = of_kind("Service")
    (api_port,) = container("holdfast-api")["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == api_port["name"]
    assert str(api_port["containerPort"]) in container("holdfast-api")["args"]
    (worker_port,) = container("holdfast-worker")["ports"]
    assert variables("holdfast-worker")["HOLDFAST_WORKER_PORT"]["value"] == str(worker_port["containerPort"])
    annotations = PODS["holdfast-worker"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(worker_port["containerPort"])
    assert annotations["prometheus.io/path"] in WORKER_PATHS


def test_processes_get_the_time_that_their_ends_take() -> None:
    worker, api = PODS["holdfast-worker"]["spec"], PODS["holdfast-api"]["spec"]
    drain_s = float(variables("holdfast-worker")["HOLDFAST_DRAIN_S"]["value"])
    assert worker["terminationGracePeriodSeconds"] > drain_s + HAND_OVER
    waits = int(container("holdfast-api")["lifecycle"]["preStop"]["exec"]["command"][1])
    assert api["terminationGracePeriodSeconds"] > waits + STREAMS_END_S


def test_the_autoscaler_scales_workers_by_what_prometheus_has() -> None:
    ((_, scaler),) = manifests("components/autoscaling")
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "holdfast-worker")
    asked = {metric["external"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
    text = (KUBERNETES / "components/autoscaling/prometheus-adapter.yaml").read_text(encoding="utf-8")
    assert {rule["seriesQuery"] for rule in yaml.safe_load(text)["rules"]["external"]} == asked
    documented = (ROOT / "docs/operations/metrics.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in documented for name in asked)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_makes_the_example() -> None:
    command = ["kubectl", "kustomize", str(KUBERNETES / "overlays/example")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    assert {one["metadata"]["namespace"] for one in made} == {"holdfast"}
    configured = {one["metadata"]["name"] for one in made if one["kind"] == "ConfigMap"}
    for one in made:
        if one["kind"] in ("Deployment", "Job"):
            (only,) = one["spec"]["template"]["spec"]["containers"]
            assert only["image"].startswith("registry.example.org/holdfast:")
            named = {source["configMapRef"]["name"] for source in only["envFrom"] if "configMapRef" in source}
            assert named <= configured
        if one["kind"] == "ConfigMap":
            assert one["data"].keys() <= SETTINGS


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_makes_an_overlay_with_the_autoscaler(tmp_path: Path) -> None:
    copy = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    example = copy / "overlays/example/kustomization.yaml"
    text = example.read_text(encoding="utf-8")
    example.write_text(text.replace("# components:", "components:").replace("#   - ../../comp", "  - ../../comp"))
    command = ["kubectl", "kustomize", str(example.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}
    assert ("HorizontalPodAutoscaler", "holdfast-worker") in made
    assert "replicas" not in made["Deployment", "holdfast-worker"]["spec"], "the autoscaler says how many"


def unit(name: str) -> dict[str, list[str]]:
    """The lines of a unit, by their names."""
    lines: dict[str, list[str]] = {}
    for line in (SYSTEMD / name).read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            lines.setdefault(line.partition("=")[0], []).append(line.partition("=")[2])
    return lines


@pytest.mark.parametrize("name", sorted(path.name for path in SYSTEMD.iterdir()))
def test_units_start_a_command_as_a_plain_user(name: str) -> None:
    lines = unit(name)
    (start,) = lines["ExecStart"]
    command = name.removeprefix("holdfast-").partition(".")[0].strip("@")
    assert re.search(rf"(^|exec env \S+ .*)/opt/holdfast/bin/holdfast {command}\b", start)
    assert (lines["User"], lines["NoNewPrivileges"], lines["ProtectSystem"]) == (["holdfast"], ["yes"], ["strict"])
    set_here = {text.partition("=")[0] for text in lines.get("Environment", [])}
    assert set_here <= SETTINGS - SECRETS
    assert lines["EnvironmentFile"][0] == "/etc/holdfast/common.env"


@pytest.mark.parametrize(
    ("instance", "given", "port"),
    [("1", {}, "9101"), ("9", {}, "9109"), ("10", {}, "9110"), ("10", {"HOLDFAST_WORKER_PORT": "7000"}, "7000")],
)
def test_a_tenth_worker_had_port_91010(instance: str, given: dict[str, str], port: str) -> None:
    """The line as systemd reads it: `%i` is the instance, `$$` one `$`."""
    (start,) = unit("holdfast-worker@.service")["ExecStart"]
    arguments = [part.replace("%i", instance).replace("$$", "$") for part in shlex.split(start)]
    arguments[-1] = arguments[-1].replace("/opt/holdfast/bin/holdfast worker", "printenv HOLDFAST_WORKER_PORT")
    environment = {"PATH": "/usr/bin:/bin", **given}
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == port


SECTIONS = {
    "Unit": {"Description", "Documentation", "After", "Wants"},
    "Service": {
        *("Type", "User", "Group", "EnvironmentFile", "Environment", "ExecStart", "CacheDirectory", "RemainAfterExit"),
        *("Restart", "RestartSec", "RestartPreventExitStatus", "TimeoutStartSec", "TimeoutStopSec", "KillMode"),
        *("LimitNOFILE", "MemoryMax", "TasksMax", "NoNewPrivileges", "CapabilityBoundingSet", "ProtectSystem"),
        *("ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables", "ProtectKernelModules"),
        *("ProtectKernelLogs", "ProtectControlGroups", "ProtectClock", "ProtectHostname", "RestrictNamespaces"),
        *("RestrictRealtime", "RestrictSUIDSGID", "RestrictAddressFamilies", "LockPersonality"),
        *("SystemCallArchitectures", "SystemCallFilter", "UMask"),
    },
    "Install": {"WantedBy"},
}
"""What `systemd-analyze verify` has taken. systemd passes over a name that it does not know, or finds in another
section, so a misspelt wall would be none."""


@pytest.mark.parametrize("name", sorted(path.name for path in SYSTEMD.iterdir()))
def test_every_line_of_a_unit_is_one_that_systemd_reads(name: str) -> None:
    known: set[str] = set()
    for line in (SYSTEMD / name).read_text(encoding="utf-8").splitlines():
        if section := re.fullmatch(r"\[(\w+)\]", line):
            known = SECTIONS[section[1]]
        elif line and not line.startswith("#"):
            assert line.partition("=")[0] in known, line


def test_a_worker_unit_leaves_room_for_the_walls_of_tools_and_for_its_end() -> None:
    lines = unit("holdfast-worker@.service")
    forbids = ("RestrictNamespaces", "SystemCallFilter", "ProtectKernelTunables", "ProtectHostname", "PrivateUsers")
    assert not set(forbids) & lines.keys()
    assert "AF_NETLINK" in lines["RestrictAddressFamilies"][0]
    assert "MemoryDenyWriteExecute" not in lines, "Node.js compiles as it runs"
    given = dict(text.split("=", 1) for text in lines["Environment"])
    assert float(lines["TimeoutStopSec"][0]) > float(given["HOLDFAST_DRAIN_S"]) + HAND_OVER
    assert float(unit("holdfast-api.service")["TimeoutStopSec"][0]) > STREAMS_END_S


def test_a_setting_that_is_wrong_is_not_tried_again() -> None:
    for name in ("holdfast-api.service", "holdfast-worker@.service"):
        assert unit(name)["RestartPreventExitStatus"] == ["2"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for path in SYSTEMD.iterdir():
        # It wants the program to be there.
        text = path.read_text(encoding="utf-8").replace("/opt/holdfast/bin/holdfast", "/bin/true")
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if "holdfast" in line]
    assert told == []
