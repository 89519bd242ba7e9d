"""deploy/grafana and deploy/prometheus: what they ask for is measured, and each alert has its page."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from api.request_log import PROBES
from shared.telemetry.metrics import Metrics
from tests.kit.project.source_tree import ROOT

PROMETHEUS = ROOT / "deploy/prometheus"
ALERTS: dict[str, Any] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/holdfast.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

ROW = re.compile(r"^\| `(?P<name>holdfast_\w+)` \| (?P<type>\w+) \|(?P<labels>[^|]*)\|", re.MULTILINE)
OF_PROMETHEUS = frozenset({"job", "instance", "deployment"})
"""The labels that a scrape adds to every series: `deployment` where it is told to."""

SERIES = re.compile(r"\b(holdfast_\w+|process_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
FUNCTIONS = frozenset(
    {"sum", "max", "count", "rate", "increase", "absent", "histogram_quantile", "topk", "by", "or", "le", "up"}
    | {"max_over_time", "unless", "on", "and", "deployment"}
)


def measured() -> dict[str, set[str]]:
    """Each series that the product has, with its labels; docs/operations/metrics.md is compared with the product's
    registry by a test of its own."""
    found: dict[str, set[str]] = {}
    for row in ROW.finditer((ROOT / "docs/operations/metrics.md").read_text(encoding="utf-8")):
        labels = set(re.findall(r"\w+", row["labels"])) | OF_PROMETHEUS
        if row["type"] == "histogram":
            found |= {f"{row['name']}_bucket": labels | {"le"}}
            found |= {f"{row['name']}_{part}": labels for part in ("sum", "count")}
        else:
            found[row["name"]] = labels
    assert found
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Where it stands, and the expression."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_what_is_asked_for_is_measured(place: str, expression: str) -> None:
    series = measured()
    of_process = {"process_open_fds", "process_max_fds", "process_resident_memory_bytes", "process_cpu_seconds_total"}
    asked = {match[1]: set(re.findall(r"(\w+)\s*[=!]~?\"", match[2] or "")) for match in SERIES.finditer(expression)}
    assert asked or expression.startswith("up{"), f"{place} asks for nothing of Holdfast's"
    allowed = OF_PROMETHEUS.union(*(series.get(name, set()) for name in asked))
    for name, labels in asked.items():
        assert name in series or name in of_process, f"{place}: nobody measures {name}"
        assert labels <= series.get(name, set(OF_PROMETHEUS)), f"{place}: {name} has no label {labels}"
    for grouped in GROUPED.findall(expression):
        assert {label.strip() for label in grouped.split(",")} <= allowed, f"{place}: by ({grouped})"


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_an_expression_is_whole(place: str, expression: str) -> None:
    """What a parser would find first, for machines without promtool."""
    bare = re.sub(r'"[^"]*"', "", expression)
    for opened, closed in ("()", "[]", "{}"):
        assert bare.count(opened) == bare.count(closed), place
    words = set(re.findall(r"\b[a-z_]+\b(?=\s*\()", bare))
    assert words <= FUNCTIONS, place
    counters = re.findall(r"\b\w+_total(?:\{[^}]*\})?(?!\w)", bare)
    assert len(counters) == len(re.findall(r"\w+_total(?:\{[^}]*\})?\[", bare)), f"{place}: a counter without its rate"
    assert len(re.findall(r"\w+_bucket\b", bare)) == bare.count("histogram_quantile("), place


WATCHED = re.compile(r"(?:rate|increase)\((holdfast_\w+)(?:\{([^}]*)\})?\[")
MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if WATCHED.search(rule["expr"])], ids=lambda rule: rule["alert"]
)
def test_the_first_callback_that_was_given_up_raised_no_alert(rule: dict[str, Any]) -> None:
    """Its series began at 1, and what has always been 1 has not grown. What an alert watches begins at 0."""
    metrics = Metrics()
    assert metrics.api
    metrics.worker.model_call_begins("openai")
    samples = [sample for family in metrics.registry.collect() for sample in family.samples if not sample.value]
    for name, labels in WATCHED.findall(rule["expr"]):
        if name == "holdfast_http_requests_total":
            continue  # There are too many routes, and the alert is on a share of many requests.
        wanted = MATCHER.findall(labels)
        found = [
            sample
            for sample in samples
            if sample.name == name
            and all(
                re.fullmatch(text if kind == "=~" else re.escape(text), sample.labels[of]) for of, kind, text in wanted
            )
        ]
        assert found, f"{name} {wanted}"


def test_probes_and_scrapes_made_failing_requests_a_small_share() -> None:
    """A deployment that few people use is asked for its health more often than for anything else."""
    [rule] = [rule for rule in RULES if rule["alert"] == "HoldfastApiErrors"]
    left_out = re.findall(r'route!~"([^"]*)"', rule["expr"])
    assert len(left_out) == len(re.findall(r"http_requests_total", rule["expr"])) == 2
    assert all(set(routes.split("|")) == PROBES for routes in left_out)


def test_every_alert_leads_to_its_page_and_every_part_of_the_page_to_an_alert() -> None:
    text = (ROOT / "docs/operations/alerts.md").read_text(encoding="utf-8")
    parts = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    assert {rule["annotations"]["runbook"] for rule in RULES} == {f"docs/operations/alerts.md#{one}" for one in parts}
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    assert {rule["labels"]["severity"] for rule in RULES} == {"critical", "warning"}
    assert all(rule["annotations"]["summary"] for rule in RULES)


def test_links_of_panels_lead_to_the_same_page() -> None:
    known = {rule["annotations"]["runbook"] for rule in RULES}
    named = {panel["description"] for panel in PANELS if panel["description"].startswith("docs/")}
    assert named
    assert named <= known


def test_panels_have_places_and_a_source_that_is_asked_for() -> None:
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "deployment"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    sources = [one["datasource"]["uid"] for panel in PANELS for one in (panel, *panel["targets"])]
    assert set(sources) == {"${datasource}"}


def test_prometheus_reads_the_rules_and_shows_the_api_a_key() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    assert all((PROMETHEUS / name).is_file() for name in config["rule_files"])
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs.keys() == {"holdfast-api", "holdfast-worker"}, "the rules know them by these names"
    assert jobs["holdfast-api"]["authorization"]["credentials_file"]
    assert "metrics_path" not in jobs["holdfast-api"], "it is /metrics, which is the default"


@pytest.mark.parametrize("process", ["api", "worker"])
def test_alerts_knew_no_process_that_prometheus_found_in_kubernetes(process: str) -> None:
    """Their jobs had names of their own there."""
    page = (ROOT / "docs/operations/alerts.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```yaml\n(.+?)^```$", page, re.MULTILINE | re.DOTALL)
    [job] = [job for job in yaml.safe_load(example)["scrape_configs"] if job["job_name"] == f"holdfast-{process}"]
    [kept] = [rule["regex"] for rule in job["relabel_configs"] if rule["action"] == "keep"]
    [named] = [rule["source_labels"] for rule in job["relabel_configs"] if rule.get("target_label") == "deployment"]
    assert named == ["__meta_kubernetes_namespace"]

    manifest = (ROOT / f"deploy/kubernetes/base/{process}.yaml").read_text(encoding="utf-8")
    [pods] = [one["spec"]["template"] for one in yaml.safe_load_all(manifest) if one["kind"] == "Deployment"]
    names = [port["name"] for container in pods["spec"]["containers"] for port in container["ports"]]
    assert kept == f"{pods['metadata']['labels']['app.kubernetes.io/name']};{names[0]}"
    assert len(names) == 1


AGGREGATION = re.compile(r"\b(?:sum|max|count|topk)\b(?: by \(([^)]*)\))?")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_living_staging_hid_a_dead_production(rule: dict[str, Any]) -> None:
    """Both are in one Prometheus: a sum or a greatest over both says nothing of either."""
    groups = AGGREGATION.findall(re.sub(r"\w+_(?:sum|count|max)\b", "", rule["expr"]))
    assert all("deployment" in re.split(r",\s*", group) for group in groups), rule["expr"]
    for absent in re.findall(r"absent\((\w+)", rule["expr"]):
        assert absent == "max_over_time", "absent() alone is of all deployments together"
        assert "unless on (deployment)" in rule["expr"]


def test_each_panel_shows_the_deployments_that_were_chosen() -> None:
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    series = [found for expression in asked for found in SERIES.findall(expression)]
    assert [name for name, labels in series if 'deployment=~"$deployment"' not in labels] == []
    [variable] = [one for one in DASHBOARD["templating"]["list"] if one["name"] == "deployment"]
    assert variable["query"]["query"] == "label_values(holdfast_build_info, deployment)"
    assert (variable["includeAll"], variable["allValue"]) == (True, ".*"), "also where no scrape sets the label"


def test_what_an_alert_watches_has_a_panel() -> None:
    """The memory of Redis had an alert and no panel."""
    shown = {name for panel in PANELS for target in panel["targets"] for name, _ in SERIES.findall(target["expr"])}
    watched = {name for rule in RULES for name, _ in SERIES.findall(rule["expr"])}
    assert watched - shown == {"process_open_fds", "process_max_fds"}


def test_the_autoscaler_of_one_deployment_went_by_the_runs_of_another() -> None:
    folder = ROOT / "deploy/kubernetes/components/autoscaling"
    adapter = yaml.safe_load((folder / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
    assert all("<<.LabelMatchers>>" in rule["metricsQuery"] for rule in adapter["rules"]["external"])
    scaler = yaml.safe_load((folder / "worker-autoscaler.yaml").read_text(encoding="utf-8"))
    named = [metric["external"]["metric"]["selector"]["matchLabels"] for metric in scaler["spec"]["metrics"]]
    example = yaml.safe_load((folder / "../../overlays/example/kustomization.yaml").read_text(encoding="utf-8"))
    assert named == [{"deployment": example["namespace"]}] * 2


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
@pytest.mark.parametrize(
    "arguments", [["rules", "alerts.yml"], ["config", "--syntax-only", "prometheus.yml"]], ids=["rules", "config"]
)
def test_promtool_takes_them(arguments: list[str]) -> None:
    done = subprocess.run(
        ["promtool", "check", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
