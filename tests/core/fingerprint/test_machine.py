"""What a cache entry depends on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.process import ROOT, python

PROGRAM = "from torchair.backend.cache.key import facts_of_process; print(facts_of_process())"


def test_the_folder_that_a_process_was_started_in_is_none_of_them(tmp_path: Path) -> None:
    """Options of torch's are paths that are made of it."""
    others = python(["-c", PROGRAM], ROOT)  # of one that was started there
    assert others.returncode == 0, others.stderr
    here = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, check=True)
    assert here.stdout.decode() == others.stdout
