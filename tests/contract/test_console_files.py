"""The console's files: what they are served as, what they let a browser do, and that nothing else is served."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from tests.kit.product.in_process import api_client
from tests.kit.project.source_tree import ROOT
from tests.kit.services.databases import open_database

WEB = ROOT / "api/console/web"
SCRIPTS = sorted(path for path in WEB.rglob("*.js") if "vendor" not in path.parts)
IMPORTED = re.compile(r"""from "([^"]+)";""")


@pytest.fixture
async def http(sqlite_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A client without a key, of a server that asks for one."""
    keys = "default=a-key-of-twenty-characters"
    async with open_database(sqlite_url) as database, api_client(database, api_keys=keys) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/console", "text/html"),
        ("/console/", "text/html"),
        ("/console/app.js", "text/javascript"),
        ("/console/lib/api.js", "text/javascript"),
        ("/console/styles/base.css", "text/css"),
        ("/console/icon.svg", "image/svg+xml"),
    ],
)
async def test_files_are_served_without_a_key_and_asked_for_again(
    http: httpx.AsyncClient, path: str, kind: str
) -> None:
    answer = await http.get(path)
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, kind)
    assert answer.headers["cache-control"] == "no-cache"
    again = await http.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name",
    [
        "../static_files.py",
        "%2e%2e/static_files.py",
        "lib/../../static_files.py",
        "/etc/passwd",
        "lib",
        "lib/",
        "nothing.js",
        "html.d.ts",
        "vendor/versions.json",
        "app.js%00.css",
        "..%5cstatic_files.js",
    ],
)
async def test_nothing_else_is_served(http: httpx.AsyncClient, name: str) -> None:
    assert (await http.get(f"/console/{name}")).status_code == 404


@pytest.mark.parametrize(
    "name",
    [
        "app.js/x",
        "app.js/x.js",
        f"{'a' * 300}.js",
        "a/" * 3000 + "x.js",
        "%00",
        "%00.js",
        "lib%00/api.js",
        "lib/%2e%2e/app.js",
        "..%2f..%2fmain.css",
    ],
    ids=lambda name: name[:20],
)
async def test_a_name_that_no_file_can_have_is_no_error_of_the_server(http: httpx.AsyncClient, name: str) -> None:
    """A name below a file and one that is too long were answered as if the database were away."""
    answer = await http.get(f"/console/{name}")
    assert answer.status_code == 404
    assert "the console has no file" in answer.text


@pytest.mark.parametrize(
    ("address", "page"),
    [
        ("runs/run-1", "/console#/runs/run-1"),
        ("approvals", "/console#/approvals"),
        ("agents/agent-1/tools", "/console#/agents/agent-1/tools"),
        ("runs/%22x%22:%20y", "/console#/runs/%22x%22%3A%20y"),
        ("nothing", "/console#/"),
        ("//elsewhere.example", "/console#/"),
        ("lib/", "/console#/"),
    ],
)
async def test_an_address_without_its_hash_was_an_error_in_json(
    http: httpx.AsyncClient, address: str, page: str
) -> None:
    answer = await http.get(f"/console/{address}", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["location"]) == (303, page)


async def test_the_documentation_was_a_white_page_without_the_internet(sqlite_url: str) -> None:
    """Everything that the page of /docs loads is a file of this server, and its policy lets nothing else in."""
    async with open_database(sqlite_url) as database, api_client(database) as client:
        answer = await client.get("/docs")
        assert answer.status_code == 200
        loaded = re.findall(r'(?:href|src)="([^"]+)"', answer.text)
        assert {"console/vendor/swagger-ui-bundle.js", "openapi.json"} <= set(loaded)
        for address in loaded:
            assert (await client.get(f"/{address}")).status_code == 200, address
        assert "http" not in answer.headers["content-security-policy"]
        assert "script-src 'self'" in answer.headers["content-security-policy"]


async def test_the_page_may_load_its_own_files_and_nothing_else(http: httpx.AsyncClient) -> None:
    policy = (await http.get("/console")).headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("img-src") == "'self' data:"
    assert {rules.pop(name) for name in ("script-src", "style-src", "connect-src", "font-src")} == {"'self'"}
    assert set(rules.values()) == {"'none'"}
    assert {"default-src", "base-uri", "form-action", "frame-ancestors"} == set(rules)


async def test_the_page_has_no_script_and_no_style_inside(http: httpx.AsyncClient) -> None:
    page = (await http.get("/console")).text
    assert re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL) == [""]
    assert "<style" not in page
    assert not re.search(r"\son\w+=|style=", page)


@pytest.mark.parametrize("script", SCRIPTS, ids=[path.name for path in SCRIPTS])
def test_modules_import_files_that_are_there_and_make_no_html_of_text(script: Path) -> None:
    text = script.read_text()
    for name in IMPORTED.findall(text):
        assert name.startswith("."), f"{script.name} imports {name}: the page has no import map"
        assert (script.parent / name).is_file(), f"{script.name} imports {name}"
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert not re.search(forbidden + "|dangerously", text)
    if script.name != "html.js":
        assert "/vendor/preact" not in text, "html.js is the one importer of Preact"


def test_what_is_vendored_has_its_licence_and_its_version_beside_it() -> None:
    licences = {path.name for path in (WEB / "vendor").glob("*.LICENSE")}
    assert licences == {
        "htm.LICENSE",
        "preact.LICENSE",
        "preact-signals.LICENSE",
        "preact-signals-core.LICENSE",
        "swagger-ui-dist.LICENSE",
        "uplot.LICENSE",
    }
    assert (WEB / "vendor" / "versions.json").is_file()
