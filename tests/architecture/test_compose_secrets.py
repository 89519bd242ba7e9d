"""docker-compose.yml gives each service the secrets that it reads."""

import re

from tests.kit.project.source_tree import ROOT

COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")


def variables(service: str) -> set[str]:
    """The names of Holdfast's variables that a service gets: its own, and those of the block that it takes over."""
    described = COMPOSE[COMPOSE.index(f"\n  {service}:\n") :].partition("\n\n")[0]
    taken = COMPOSE[COMPOSE.index("&environment\n") :].partition("\n\n")[0]
    texts = [described]
    if "*environment" in described or "\n    environment:" not in described:
        texts.append(taken)
    return set(re.findall(r"^\s+(HOLDFAST_\w+):", "\n".join(texts), re.MULTILINE))


def test_workers_and_migrate_got_the_keys_of_the_api() -> None:
    """Finding low 14 of the security audit: the worker's user runs the code of tools."""
    of_the_api = {"HOLDFAST_API_KEYS", "HOLDFAST_CALLBACK_SECRET"}
    assert of_the_api <= variables("api")
    assert not of_the_api & variables("worker")
    assert not (of_the_api | {"HOLDFAST_ENCRYPTION_KEY", "HOLDFAST_REDIS_URL"}) & variables("migrate")


def test_who_encrypts_and_who_decrypts_have_the_key() -> None:
    for service in ("api", "worker"):
        assert {"HOLDFAST_ENCRYPTION_KEY", "HOLDFAST_DATABASE_URL"} <= variables(service)
    assert "HOLDFAST_DATABASE_URL" in variables("migrate")
