"""The streams of runs, or of their changes, that a tab reads."""

import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.async_api import Page, Request


@dataclass
class RunStreams:
    """The requests of a tab in order, and those that have not ended."""

    asked: list[Request] = field(default_factory=list[Request])
    open: list[Request] = field(default_factory=list[Request])

    @property
    def last_began_after(self) -> int:
        """The cursor of the stream that was requested last."""
        return json.loads(self.asked[-1].post_data or "{}")["starting_after"]


def run_streams_of(page: Page, ending: str = "/stream") -> RunStreams:
    """Watches a tab from now on. The paths of the streams end so."""
    streams = RunStreams()

    def note_begin(request: Request) -> None:
        if urlsplit(request.url).path.endswith(ending):
            streams.asked.append(request)
            streams.open.append(request)

    def note_end(request: Request) -> None:
        if request in streams.open:
            streams.open.remove(request)

    page.on("request", note_begin)
    page.on("requestfinished", note_end)
    page.on("requestfailed", note_end)
    return streams
