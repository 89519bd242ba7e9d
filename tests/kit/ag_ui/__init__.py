"""AG-UI's clients for tests: the rules that they enforce on a stream, and the messages that they build from it."""

from tests.kit.ag_ui.client import AgUiClient, ClientRefused, OldestAgUiClient, frames_in
from tests.kit.ag_ui.page import Page

__all__ = ["AgUiClient", "ClientRefused", "OldestAgUiClient", "Page", "frames_in"]
