"""The filter of a call that becomes another program: what its limit of memory does not see is refused."""

import subprocess
import sys
import textwrap

import pytest

from tests.kit.project.source_tree import ROOT

SCRIPT = """
    import ctypes, mmap, os, sys
    sys.path.insert(0, "worker/tools/guest")
    import child_seccomp
    if not child_seccomp.is_known(os.uname().machine):
        sys.exit(77)
    child_seccomp.install(ctypes.CDLL(None, use_errno=True), refuse_metadata=False, becomes_program=True)
    zero = os.open("/dev/zero", os.O_RDWR)
    found = []
    shared, private, alone = mmap.MAP_SHARED, mmap.MAP_PRIVATE, mmap.MAP_ANONYMOUS
    for flags, file in ((shared | alone, -1), (shared, zero), (shared | 2, zero), (private | alone | 0x100, -1),
                        (private | alone, -1)):
        try:
            mmap.mmap(file, 4096, flags=flags)
            found.append("mapped")
        except PermissionError:
            found.append("refused")
    try:
        os.fork() or os._exit(0)
    except PermissionError:
        found.append("no fork")
    os.write(1, " ".join(found).encode())
    os.execv("/bin/true", ["true"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_memory_that_no_limit_counts_is_refused_to_programs() -> None:
    """A limit of data counts private memory: shared mappings, also of /dev/zero, and stacks went past it."""
    ran = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(SCRIPT)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ran.returncode == 77:
        pytest.skip("no numbers of system calls for this processor")
    assert (ran.returncode, ran.stdout) == (0, "refused refused refused refused mapped no fork"), ran.stderr
