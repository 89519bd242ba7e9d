"""docker-compose.yml passes the settings on, and its Postgres binds Holdfast's role to the policies of the tables."""

import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from sqlalchemy.engine import make_url

from shared.process.settings import Settings
from shared.sql.engine import Database
from shared.sql.migrate import migrate
from tests.kit.project.source_tree import ROOT
from tests.kit.services.databases import PostgresServer

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
ROLE_SQL = ROOT / "docker-compose.role.sql"
LISTED = set(re.findall(r"^\| `(HOLDFAST_\w+)` \|", (ROOT / "docs/settings.md").read_text(encoding="utf-8"), re.M))

NOT_FOR_CONTAINERS = {
    "HOLDFAST_DATA_DIR": "of `holdfast dev`",
    "HOLDFAST_CRASH_AT": "of tests",
}


def environment(service: str) -> dict[str, Any]:
    return COMPOSE["services"][service].get("environment", {})


def test_a_setting_in_env_never_reached_the_containers() -> None:
    passed = {name for service in ("api", "worker") for name in environment(service) if name.startswith("HOLDFAST_")}
    assert LISTED - passed == set(NOT_FOR_CONTAINERS)
    assert passed <= LISTED


def names_twice(node: Any) -> Iterator[str]:
    inner: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
    if isinstance(node, yaml.MappingNode):
        names = [name.value for name, _ in inner]
        yield from {name for name in names if names.count(name) > 1}
        inner = [value for _, value in inner]
    for one in inner:
        yield from names_twice(one)


def test_a_name_that_stood_twice_lost_its_value() -> None:
    """The later one counts, without a word: it was empty, and the folder of packages lay outside of its volume."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert list(names_twice(yaml.SafeLoader(text).get_single_node())) == []


def test_what_compose_says_of_a_setting_is_its_default() -> None:
    """A default that stands in two places becomes two defaults."""
    for service in ("api", "worker"):
        for name, value in environment(service).items():
            said = re.fullmatch(r"\$\{" + name + r":-(.*)\}", str(value))
            if name in LISTED and said is not None:
                field = Settings.model_fields[name.removeprefix("HOLDFAST_").lower()]
                default = field.get_default()
                plain = "" if hasattr(default, "get_secret_value") else str(default)
                numbers = re.fullmatch(r"[\d.]+", plain)
                assert float(said[1]) == float(plain) if numbers else said[1].lower() == plain.lower(), name


def test_nobody_but_the_service_that_makes_the_role_is_superuser() -> None:
    superuser = COMPOSE["services"]["postgres"]["environment"]["POSTGRES_USER"]
    for service in ("api", "worker", "migrate"):
        url = make_url(environment(service)["HOLDFAST_DATABASE_URL"])
        assert url.username == "holdfast_server" != superuser
    making = COMPOSE["services"]["role"]
    assert making["environment"]["PGUSER"] == superuser
    # At the socket, where the image asks nobody for a password: an older volume has another one.
    assert making["environment"]["PGHOST"] == "/var/run/postgresql"
    socket = "postgres-socket:/var/run/postgresql"
    assert making["volumes"] == [f"./{ROLE_SQL.name}:/role.sql:ro", socket]
    assert socket in COMPOSE["services"]["postgres"]["volumes"]
    waits = {service: COMPOSE["services"][service]["depends_on"] for service in ("migrate", "api", "worker")}
    assert waits["migrate"] == {"role": {"condition": "service_completed_successfully"}}
    assert all("migrate" in waits[service] for service in ("api", "worker"))


@pytest.mark.services
async def test_row_level_security_was_void_with_compose(postgres_server: PostgresServer) -> None:
    """Postgres's image makes a superuser. The script is run on a database that was migrated as one, twice."""
    superusers = postgres_server.create_database()
    database = Database(superusers)
    if not await database.passes_policies():
        pytest.skip("only a superuser makes the role")
    await migrate(database)
    await database.aclose()
    text = ROLE_SQL.read_text(encoding="utf-8")
    name = f"holdfast_server_{make_url(superusers).database}"
    script = text.replace("holdfast_server", name)
    try:
        for _ in range(2):
            _psql(superusers, script, POSTGRES_SERVER_PASSWORD="holdfast")
        url = make_url(superusers).set(username=name, password="holdfast")
        plain = Database(url.render_as_string(hide_password=False))
        assert not await plain.passes_policies()
        await migrate(plain)
        async with plain.write() as connection:
            await connection.exec_driver_sql("CREATE TABLE one_of_its_own (number INT)")
            owners = await connection.exec_driver_sql(
                "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'"
            )
            assert owners.scalars().all() == [name]
        await plain.aclose()
    finally:
        postgres_server.drop_database(superusers)
        _psql(make_url(superusers).set(database="postgres").render_as_string(hide_password=False), f"DROP ROLE {name}")


@pytest.mark.services
async def test_a_volume_of_an_older_release_kept_the_password_that_everybody_knows(
    postgres_server: PostgresServer,
) -> None:
    """The image sets the superuser's password for a new database only."""
    superusers = postgres_server.create_database()
    database = Database(superusers)
    is_superuser = await database.passes_policies()
    await database.aclose()
    if not is_superuser:
        pytest.skip("only a superuser makes the role")
    name = f"holdfast_server_{make_url(superusers).database}"
    old = f"{name}_old"
    hashed = f"SELECT rolpassword FROM pg_authid WHERE rolname = '{old}'"  # noqa: S608 - a name made here
    script = f"SET SESSION AUTHORIZATION {old};\n" + ROLE_SQL.read_text(encoding="utf-8").replace(
        "holdfast_server", name
    )
    try:
        _psql(superusers, f"CREATE ROLE {old} SUPERUSER LOGIN PASSWORD 'holdfast'")
        known = _psql(superusers, hashed)
        _psql(superusers, script, POSTGRES_SERVER_PASSWORD="of the server")
        assert _psql(superusers, hashed) == known
        _psql(superusers, script, POSTGRES_SERVER_PASSWORD="of the server", POSTGRES_PASSWORD='it\'s "new"')
        assert _psql(superusers, hashed) not in {known, ""}
    finally:
        postgres_server.drop_database(superusers)
        others = make_url(superusers).set(database="postgres").render_as_string(hide_password=False)
        _psql(others, f"DROP ROLE IF EXISTS {name}; DROP ROLE IF EXISTS {old}")


def _psql(url: str, script: str, **variables: str) -> str:
    command = ["psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1", url]
    environment = os.environ | variables
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
