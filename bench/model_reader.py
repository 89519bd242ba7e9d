"""Lets the load program read the model directly, as if it were a deployment: the floor of all models' figures."""

import json
from typing import Any

from bench.client import Client


class ModelReader(Client):
    """Reads the model's answers directly."""

    async def agent(self, *tool_ids: str, model: str = "") -> str:
        del tool_ids, model
        return "nobody"

    def send(self, agent_id: str, **wish: Any):
        message = {"role": "user", "content": json.dumps(wish)}
        return self.watching(f"/{agent_id}", {"messages": [message]})
