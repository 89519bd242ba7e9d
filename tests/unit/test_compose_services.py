"""docker-compose.yml by the schema of its own specification, and what each service is denied."""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from holdfast.health import address
from tests.kit.project.source_tree import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SCHEMA = json.loads((ROOT / "tests/kit/compose/compose-spec-2.4.8.json").read_text(encoding="utf-8"))
OURS = ("api", "worker", "migrate")
LASTING = (*OURS[:2], "redis", "postgres")


def service(name: str) -> dict[str, Any]:
    return COMPOSE["services"][name]


def faults(document: dict[str, Any]) -> list[str]:
    validator: Any = Draft7Validator(SCHEMA)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def test_the_file_is_one_of_its_specification() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert faults(COMPOSE) == []


def _misspell(document: dict[str, Any]) -> None:
    document["services"]["api"]["cap-drop"] = ["ALL"]


def _one_for_a_list(document: dict[str, Any]) -> None:
    document["services"]["redis"]["security_opt"] = "no-new-privileges"


def _no_text(document: dict[str, Any]) -> None:
    document["services"]["postgres"]["healthcheck"]["test"] = 5


def _unknown_condition(document: dict[str, Any]) -> None:
    document["services"]["api"]["depends_on"]["redis"]["condition"] = "service_up"


def _unknown_part(document: dict[str, Any]) -> None:
    document["secret"] = document.pop("secrets")


@pytest.mark.parametrize("damage", [_misspell, _one_for_a_list, _no_text, _unknown_condition, _unknown_part])
def test_a_fault_in_the_file_is_found(damage: Callable[[dict[str, Any]], None]) -> None:
    damaged = copy.deepcopy(COMPOSE)
    damage(damaged)
    assert faults(damaged) != []


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_could_do_what_it_never_has_to(name: str) -> None:
    denied = service(name)
    assert denied["read_only"] is True
    assert denied["cap_drop"] == ["ALL"]
    assert denied["security_opt"] == ["no-new-privileges:true"]
    assert 0 < denied["pids_limit"] <= 4096
    # Ours are a user of their image. The others' images begin as root, and would need capabilities to become a user.
    assert (name in OURS) != (denied.get("user") in {"postgres", "redis"})
    assert not {"privileged", "cap_add", "devices", "pid", "ipc", "network_mode"} & set(denied)


@pytest.mark.parametrize("name", OURS)
def test_a_process_has_room_for_temporary_files_with_an_end(name: str) -> None:
    """A file system that cannot be written, and tools that write theirs below TMPDIR."""
    (place,) = service(name)["tmpfs"]
    assert re.fullmatch(r"/tmp:size=\d+[mg],mode=1777", place)


@pytest.mark.parametrize("name", OURS)
def test_a_model_server_on_the_host_was_out_of_reach(name: str) -> None:
    assert service(name)["extra_hosts"] == ["host.docker.internal:host-gateway"]


def test_no_password_stands_in_the_files() -> None:
    """Each deployment makes its own, and `up` says so where there is none."""
    asked = r"\$\{(\w+):\?run sh docker-compose\.init\.sh first\}"
    for name in COMPOSE["services"]:
        for variable, value in service(name).get("environment", {}).items():
            if variable.endswith("PASSWORD"):
                assert re.fullmatch(asked, value), variable
            elif "://" in str(value) and "@" in str(value):
                assert re.fullmatch(rf"\w+://\w+:{asked}@[\w:/]+", value), variable
    role = (ROOT / "docker-compose.role.sql").read_text(encoding="utf-8")
    assert set(re.findall(r"PASSWORD (\S+);", role)) == {":'server_password'", ":'superuser_password'"}


def test_keys_are_read_from_files() -> None:
    """They were variables, which every look at the container shows."""
    given = {"api": {"api_keys", "encryption_key"}, "worker": {"encryption_key"}}
    for name in COMPOSE["services"]:
        secrets = set(service(name).get("secrets", []))
        assert secrets == given.get(name, set())
        files = {
            value for variable, value in service(name).get("environment", {}).items() if variable.endswith("_FILE")
        }
        assert {f"/run/secrets/{secret}" for secret in secrets} <= files
    assert {secret["file"] for secret in COMPOSE["secrets"].values()} == {
        "./secrets/api_keys",
        "./secrets/encryption_key",
    }


@pytest.mark.parametrize("name", LASTING)
def test_what_runs_on_has_a_health_check_with_an_end(name: str) -> None:
    check = service(name)["healthcheck"]
    assert {"test", "interval", "timeout", "retries"} <= set(check)


@pytest.mark.parametrize("name", ["api", "worker"])
def test_a_health_check_of_ours_passed_whatever_the_process_did(name: str) -> None:
    assert service(name)["healthcheck"]["test"] == ["CMD", "python", "-I", "-m", "holdfast.health", "/readyz"]
    variables = {variable: str(value or "") for variable, value in service(name)["environment"].items()}
    asked = address(["holdfast", *service(name)["command"]], variables)
    assert asked == ("127.0.0.1", {"api": 8283, "worker": 9100}[name])


def test_a_database_that_is_still_being_made_was_ready() -> None:
    """The image serves it over its socket alone until then, and pg_isready looks there first."""
    test = service("postgres")["healthcheck"]["test"]
    assert test[test.index("-h") + 1] == "127.0.0.1"


def test_a_redis_that_refuses_commands_was_ready() -> None:
    """`redis-cli ping` ends well when the answer is LOADING or an error."""
    assert service("redis")["healthcheck"]["test"] == ["CMD-SHELL", "redis-cli ping | grep -qx PONG"]
