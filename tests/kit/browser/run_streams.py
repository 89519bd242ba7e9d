"""The streams of runs that a tab reads."""

import json
from dataclasses import dataclass, field

from playwright.async_api import Page, Request


@dataclass
class RunStreams:
    """What a tab has asked for, in order, and what of it has not ended."""

    asked: list[Request] = field(default_factory=list[Request])
    open: list[Request] = field(default_factory=list[Request])

    @property
    def run_ids(self) -> list[str]:
        """The runs whose streams were asked for."""
        return [request.url.split("/")[-2] for request in self.asked]

    @property
    def last_began_after(self) -> int:
        """The number behind which the stream begins that was asked for last."""
        return json.loads(self.asked[-1].post_data or "{}")["starting_after"]


def run_streams_of(page: Page) -> RunStreams:
    """Watches a tab from now on."""
    streams = RunStreams()

    def note_begin(request: Request) -> None:
        if request.url.endswith("/stream"):
            streams.asked.append(request)
            streams.open.append(request)

    def note_end(request: Request) -> None:
        if request in streams.open:
            streams.open.remove(request)

    page.on("request", note_begin)
    page.on("requestfinished", note_end)
    page.on("requestfailed", note_end)
    return streams
