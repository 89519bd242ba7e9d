"""Packages of tools: what a tool asks for, what it was given, and what the operator allows."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from shared.domain.errors import InvalidRequest

MOST_REQUIREMENTS = 50
MOST_EXTRAS = 10
LONGEST_NAME, LONGEST_VERSION = 200, 200
"""Characters."""


class ToolPackages(msgspec.Struct, frozen=True):
    """The packages of one tool: every one that it asks for or needs, in exactly one version."""

    pins: list[str]
    """`name==version`, sorted."""
    modules: list[str]
    """What can be imported from them, by the first part of the names."""


class PackageRoom(msgspec.Struct, frozen=True):
    """How much packages may take of a disk, or do take."""

    bytes_: int
    files: int


class PackageRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator says of packages."""

    index: str
    """URL of the package index, which may hold a password; empty: nothing is installed."""
    folder: Path
    """Where environments are kept."""
    room: PackageRoom
    """Of one environment."""
    most_bytes_in_all: int
    """Of all environments: those that were used least recently are removed when a new one needs the room."""
    build_s: float
    """Seconds for an environment to be resolved and installed."""
    keep: timedelta
    """How long an environment is kept that nobody uses."""
    ca_file: str = ""
    """A file of certificates that are trusted beside the system's."""


def requirement_lines(given: Sequence[Mapping[str, Any]]) -> list[str]:
    """The wire's `pip_requirements`, `[{"name": "requests", "version": "2.31.0"}]`, as sorted lines of PEP 508.

    A version may also be a range, as ">=2,<3". Nothing of the input gets into a line as it is, so no line can be an
    option, a path or a URL. Raises `InvalidRequest`, which names the entry.
    """
    if len(given) > MOST_REQUIREMENTS:
        raise InvalidRequest(
            f"pip_requirements: {len(given)} packages; a tool may ask for {MOST_REQUIREMENTS}", field="pip_requirements"
        )
    lines: dict[str, str] = {}
    for number, entry in enumerate(given):
        place = f"pip_requirements[{number}]"
        name, extras = _name(entry.get("name"), f"{place}.name")
        if name in lines:
            raise InvalidRequest(f"{place}.name: {name} is asked for twice", field=f"{place}.name")
        lines[name] = f"{name}{extras}{_version(entry.get('version'), f'{place}.version')}"
    return sorted(lines.values())


def _name(given: object, place: str) -> tuple[str, str]:
    """The package's name as indexes write it, and its extras in brackets."""
    if not isinstance(given, str) or not 0 < len(given) <= LONGEST_NAME:
        raise InvalidRequest(f"{place}: it must be a package's name, of up to {LONGEST_NAME} characters", field=place)
    try:
        asked = Requirement(given)
    except InvalidRequirement as error:
        raise InvalidRequest(
            f"{place}: {given!r} is no package's name; use one like 'requests'", field=place
        ) from error
    if asked.url or asked.marker or asked.specifier or len(asked.extras) > MOST_EXTRAS:
        raise InvalidRequest(
            f"{place}: {given!r} is more than a name; use one like 'requests' or 'requests[socks]', and `version` for "
            "its version. Packages come from the server's index alone",
            field=place,
        )
    extras = ",".join(sorted(map(canonicalize_name, asked.extras)))
    return canonicalize_name(asked.name), f"[{extras}]" if extras else ""


def _version(given: object, place: str) -> str:
    """The versions that are meant, as PEP 440 writes them; empty for any."""
    if given is None or given == "":
        return ""
    fix = "use one like '2.31.0', or a range like '>=2,<3'"
    if not isinstance(given, str) or len(given) > LONGEST_VERSION:
        raise InvalidRequest(f"{place}: it must be a text of up to {LONGEST_VERSION} characters; {fix}", field=place)
    try:
        return f"=={Version(given)}"
    except InvalidVersion:
        pass
    try:
        versions = SpecifierSet(given)
    except InvalidSpecifier as error:
        raise InvalidRequest(f"{place}: {given!r} is no version; {fix}", field=place) from error
    if not versions or any(one.operator == "===" for one in versions):
        raise InvalidRequest(f"{place}: {given!r} names no versions; {fix}", field=place)
    return str(versions)
