"""What AG-UI's clients demand of a stream, and what they make of it."""

from tests.kit.ag_ui.client import AgUiClient, ClientRefused, OldestAgUiClient, frames_in
from tests.kit.ag_ui.page import Page

__all__ = ["AgUiClient", "ClientRefused", "OldestAgUiClient", "Page", "frames_in"]
