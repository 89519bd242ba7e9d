"""The Node.js of this machine, for tests of tools in JavaScript."""

import os
import shutil

import pytest

from worker.tools.interpreter import NodeProgram
from worker.tools.node_choice import look_at


def need_node() -> NodeProgram:
    """Skips the test if there is none; fails it in CI."""
    path = shutil.which("node") or shutil.which("nodejs")
    if path is not None:
        return look_at(path)
    message = "there is no Node.js on this machine"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{message}. CI runs every test.", pytrace=False)
    pytest.skip(message)
