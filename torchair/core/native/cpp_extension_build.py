"""Build a C++ extension as torch does, in a separate process: `python cpp_extension_build.py SOURCE NAME
FOLDER`.

This module imports nothing from torchair, so starting it takes little more time than starting the compiler.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension


def cpp_runtime() -> list[str]:
    """Return the C++ runtime that torch has loaded. If it is named, compilers link it instead of their own.
    With two runtimes, an exception that leaves the extension would end the process.
    """
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return sorted({line.split(None, 5)[5] for line in lines if "/libstdc++.so" in line})[:1]


def main(source: str, name: str, folder: str) -> None:
    """Compile one source to `FOLDER/NAME.so`."""
    setup(
        name=name,
        ext_modules=[
            CppExtension(
                name, [source], extra_compile_args=["-O2", "-g0", "-w"], extra_link_args=cpp_runtime()
            )
        ],
        cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False, no_python_abi_suffix=True)},
        script_args=["--quiet", "build_ext", "--build-lib", folder, "--build-temp", folder],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
