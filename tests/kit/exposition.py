"""Prometheus' text format, as a scrape gets it."""

import httpx
from prometheus_client.parser import text_string_to_metric_families


class Figures:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def of(self, name: str, **labels: str) -> float:
        """Returns the value of `holdfast_<name>`; 0 if the product has counted nothing."""
        return self._samples.get((f"holdfast_{name}", frozenset(labels.items())), 0.0)

    def has(self, name: str) -> bool:
        """Whether a figure has this name."""
        return any(known == f"holdfast_{name}" for known, _ in self._samples)

    def labels(self, name: str) -> set[str]:
        """Returns every value of the labels with this name."""
        return {value for known, labels in self._samples if known == f"holdfast_{name}" for _, value in labels}


async def scraped(http: httpx.AsyncClient) -> Figures:
    """A scrape of the API."""
    answer = await http.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Figures(answer.text)
