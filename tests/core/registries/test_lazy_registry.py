"""What is loaded when it is first asked for."""

from __future__ import annotations

from pathlib import Path

from tests.support.process import python

CAPTURED = """
import sys, torch
import torchair

TABLES = ("torchair.convert.aten.", "torchair.engine.kernels.c")

def late():
    return [name for name in sys.modules if name.startswith(TABLES)]

compiled = torch.compile(lambda x: torch.softmax(x, -1) + 1, backend="npugraph_ex")
x = torch.randn(2, 3)
torch.testing.assert_close(compiled(x), torch.softmax(x, -1) + 1)
unexpected = set(late()) - {"torchair.convert.aten.shape", "torchair.engine.kernels.control"}
assert not unexpected, unexpected
torch.compile(lambda x: torch.softmax(x, -1) + 2, backend="npu")(x)
assert len(late()) > 30, late()
"""


def test_capture_mode_loads_no_converters_and_no_kernels(tmp_path: Path) -> None:
    done = python(["-c", CAPTURED], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def test_parts_of_a_package_are_found_without_its_library(tmp_path: Path) -> None:
    code = (
        "import sys; from torchair.ops.streams import scope_analysis\n"
        "assert 'torchair.ops.npu' not in sys.modules"
    )
    done = python(["-c", code], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


THREADS = """
import threading
from torchair.convert.base import registry
from torchair.engine import registry as kernels

found = []
gate = threading.Barrier(8)

def look():
    gate.wait()
    found.append((len(registry.builtin_targets()), len(kernels.kernel_names())))

threads = [threading.Thread(target=look) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(set(found)) == 1 and found[0][0] > 800 and found[0][1] > 500, found
"""


def test_all_threads_see_all_rows(tmp_path: Path) -> None:
    done = python(["-c", THREADS], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


USERS = """
import torch
import torchair

@torchair.register_fx_node_ge_converter(torch.ops.aten.clone.default)
def clone(self, *, memory_format=None, meta_outputs=None):
    return torchair.ge.Identity(self)

x = torch.randn(2, 3)
torch.testing.assert_close(torch.compile(lambda x: x.t().clone() * 2, backend="npu")(x), x.t() * 2)
from torchair.convert.base.registry import candidates
assert [row.from_user for row in candidates(torch.ops.aten.clone.default)] == [True, False]
assert [row.from_user for row in candidates(torch.ops.prims.clone.default)] == [False]
"""


def test_a_user_may_come_first(tmp_path: Path) -> None:
    """Our rows are there behind the user's, and rows that refer to ours mean ours."""
    done = python(["-c", USERS], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
