"""Who asks: a bearer key stands for a project. Everything that a request may see is filtered by that project."""

import hashlib
import hmac

from starlette.exceptions import HTTPException

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId

DEFAULT_PROJECT = ProjectId("default")


class ApiKeys:
    """The keys of this server. Without any, everybody is the default project: for a server on loopback only."""

    def __init__(self, keys: dict[str, ProjectId]) -> None:
        self._keys = [(key.encode(), project_id) for key, project_id in keys.items()]

    @classmethod
    def parse(cls, text: str) -> "ApiKeys":
        """Reads `project=key,project=key`. A project may have several keys. Raises `InvalidRequest`."""
        keys: dict[str, ProjectId] = {}
        entries = [entry.strip() for entry in text.split(",") if entry.strip()]
        if text and not entries:
            # Two empty variables make such a list, `$KEY_A,$KEY_B`. Its author does not want a server without keys.
            raise InvalidRequest("HOLDFAST_API_KEYS is set, but no key is in it: write it as project=key")
        for position, entry in enumerate(entries, start=1):
            project, key = (part.strip() for part in entry.partition("=")[::2])
            # The entry itself is a secret: the message names its place.
            if not project or not key:
                raise InvalidRequest(f"HOLDFAST_API_KEYS, entry {position}: write it as project=key")
            if key in keys:
                raise InvalidRequest(f"HOLDFAST_API_KEYS, entry {position}: this key is there twice")
            keys[key] = ProjectId(project)
        return cls(keys)

    @property
    def are_required(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._keys)

    def projects(self) -> list[ProjectId]:
        """Every project that has a key; without keys, the one project."""
        return list(dict.fromkeys(project_id for _, project_id in self._keys)) or [DEFAULT_PROJECT]

    def fingerprint(self) -> bytes:
        """A hash of all keys, whatever their order."""
        hashed = sorted(hashlib.sha256(key).digest() for key, _ in self._keys)
        return hashlib.sha256(b"".join(hashed)).digest()

    def project_of(self, authorization: str | None) -> ProjectId:
        """The project of an `Authorization` header. Raises a 401 for a key that is missing or not ours."""
        if not self._keys:
            return DEFAULT_PROJECT
        scheme, _, given = (authorization or "").partition(" ")
        found = None
        if scheme.lower() == "bearer":
            # Every key is compared, whichever is right: the time that it takes tells nothing.
            for key, project_id in self._keys:
                if hmac.compare_digest(key, given.strip().encode()):
                    found = project_id
        if found is None:
            reason = "The API key is not valid" if authorization else "An API key is needed"
            raise HTTPException(
                401, f"{reason}: send it as 'Authorization: Bearer <key>'", {"WWW-Authenticate": "Bearer"}
            )
        return found
