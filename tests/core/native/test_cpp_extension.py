"""Extensions of ours and the compilers they are built with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from torchair.core.native.cpp_extension import Extension
from torchair.core.torch_private.compilers.inductor import inductor_config

SOURCE = """
#include <torch/extension.h>
#include <sstream>
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("say", [] { std::ostringstream text; text << 1.5; return text.str(); });
}
"""


@pytest.mark.full
def test_a_compiler_that_brings_its_own_runtime(tmp_path: Path) -> None:
    """With two of them in a process, an error of ours ends it: the one that torch has is taken."""
    compiler, source, library = tmp_path / "compiler", tmp_path / "source.cpp", tmp_path / "made.so"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@" -static-libstdc++ -static-libgcc\n')
    compiler.chmod(0o755)
    source.write_text(SOURCE)
    extension = Extension("tried_extension", source)
    with inductor_config.patch({"cpp.cxx": (None, str(compiler))}):
        extension.build(library)
    assert b"libstdc++.so" in library.read_bytes()
    assert extension.load(library).say() == "1.5"
