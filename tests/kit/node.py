"""The Node.js of this machine, for tests of tools in JavaScript."""

import os
import shutil

import pytest

from worker.tools.interpreter import NODE_LOOK, NodeProgram, answer_of, described_node


def need_node() -> NodeProgram:
    """Skips the test if there is none; fails it in CI."""
    path = shutil.which("node") or shutil.which("nodejs")
    if path is not None:
        return described_node(answer_of(path, "-e", NODE_LOOK))
    message = "there is no Node.js on this machine"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{message}. CI runs every test.", pytrace=False)
    pytest.skip(message)
