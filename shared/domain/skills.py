"""Skills that a client names with its request, as the model is told of them: files in a tree for each folder."""

import posixpath
from collections.abc import Iterable, Iterator

import msgspec

FILE = "SKILL.md"
DEFAULT_FOLDER = "${MEMORY_DIR}/skills"
"""Where clients look for skills that say no location; they fill in the variable themselves."""


class ClientSkill(msgspec.Struct, frozen=True):
    """A skill that the client has."""

    name: str
    description: str = ""
    location: str = ""


class Folder(msgspec.Struct):
    """Folders and files, by name; a file with what it is about."""

    folders: dict[str, "Folder"] = msgspec.field(default_factory=dict[str, "Folder"])
    files: dict[str, str] = msgspec.field(default_factory=dict[str, str])

    def add(self, path: str, about: str) -> None:
        *folders, file = path.split("/")
        place = self
        for name in folders:
            place = place.folders.setdefault(name, Folder())
        place.files[file] = about

    def lines(self, indent: str = "") -> Iterator[str]:
        """A tree: the folders first, then the files."""
        last = len(self.folders) + len(self.files)
        for number, (name, inner) in enumerate(sorted(self.folders.items()), start=1):
            yield f"{indent}{_branch(number, last)}{name}/"
            yield from inner.lines(indent + ("    " if number == last else "│   "))
        for number, (name, about) in enumerate(sorted(self.files.items()), start=len(self.folders) + 1):
            yield f"{indent}{_branch(number, last)}{name}" + (f" ({about})" if about else "")


def _branch(number: int, last: int) -> str:
    return "└── " if number == last else "├── "


def with_skills(system: str, skills: Iterable[ClientSkill]) -> str:
    """The instructions, and the skills behind them. The first of two skills of one name is told."""
    named = {skill.name: skill for skill in reversed(list(skills))}
    if not named:
        return system
    roots: dict[str, Folder] = {}
    for skill in named.values():
        root, path = _place(skill)
        roots.setdefault(root, Folder()).add(path, _first_line(skill.description))
    trees = ("\n".join([root, *roots[root].lines()]) for root in sorted(roots))
    told = "\n\n".join(trees)
    return f"{system.rstrip()}\n\n<available_skills>\n{told}\n</available_skills>"


def _place(skill: ClientSkill) -> tuple[str, str]:
    """The folder under which a skill is listed, and its path there."""
    location = skill.location.strip() or f"{DEFAULT_FOLDER}/{skill.name}/{FILE}"
    folder, file = posixpath.split(location)
    if file == FILE and posixpath.basename(folder) == skill.name.rpartition("/")[2]:
        root, name = posixpath.split(folder)
        return root, f"{name}/{file}"
    return folder, file


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()
