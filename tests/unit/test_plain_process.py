"""Tools without walls whose worker is root: they are somebody else, or the worker does not start."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from shared.domain.errors import InvalidRequest
from tests.kit.sandboxes import LIMITS, SCRATCH_MB
from tests.kit.tools import named_processes, tool_call
from tests.kit.wait_until import wait_until
from worker.tools.sandbox_choice import ProcessSandbox, SandboxChoice, plain_process

ONLY_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root has a user to give up; CI is root")

WHO = """
    import os

    def tool():
        with open("note", "w") as file:
            file.write("mine")
        try:
            os.setuid(0)
        except PermissionError:
            pass
        try:
            os.listdir("/root")
        except PermissionError:
            return [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()]
        return "root's files"
"""
LEAVES = """
    import ctypes, os, time

    def tool():
        ctypes.CDLL(None).prctl(15, b"of-nobody")
        if os.fork() == 0:
            os.setsid()
            ctypes.CDLL(None).prctl(15, b"of-nobody-too")
        time.sleep(60)
"""


def choice(user: str = "nobody", python: str = "") -> SandboxChoice:
    return SandboxChoice("process", user, python, SCRATCH_MB)


@pytest.fixture
async def sandbox() -> ProcessSandbox:
    plain = await plain_process(choice())
    return ProcessSandbox(LIMITS, grace_s=2.0, python=plain.python, user=plain.user)


@ONLY_ROOT
async def test_a_plain_tool_of_root_was_root(sandbox: ProcessSandbox) -> None:
    """The worker only warned."""
    outcome = await sandbox.call(tool_call(WHO))
    assert (outcome.status, outcome.text) == ("success", "[65534, 65534, 65534, []]")


@ONLY_ROOT
async def test_a_tool_of_another_user_leaves_nothing_when_it_is_cancelled(sandbox: ProcessSandbox) -> None:
    task = asyncio.create_task(sandbox.call(tool_call(LEAVES)), name="call")
    await wait_until(lambda: named_processes("of-nobody-too"), description="the tool's child")
    task.cancel()
    await asyncio.wait([task])
    assert not named_processes("of-nobody")
    assert not named_processes("of-nobody-too")


@ONLY_ROOT
async def test_root_whose_tools_cannot_be_somebody_else_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # which pytest has closed to others
    with pytest.raises(InvalidRequest) as refused:
        await plain_process(choice())
    assert "the user 'nobody' (HOLDFAST_TOOL_USER) cannot run tools here" in refused.value.message
    assert "Permission" in refused.value.message
    assert "HOLDFAST_TOOL_USER=root" in refused.value.message
    with pytest.raises(InvalidRequest, match="/nowhere/python cannot run tools"):
        await plain_process(choice(python="/nowhere/python"))


async def test_root_is_the_tools_user_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    plain = await plain_process(choice("root"))
    assert (plain.user, plain.acting_user) == (None, "root, which is this worker's user,")
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    plain = await plain_process(choice())
    assert (plain.user, plain.acting_user) == (None, "this worker's user")
