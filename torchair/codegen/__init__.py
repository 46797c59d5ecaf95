"""Generate programs from FX graphs. `build` is the only entry point; each kind of program has its own
file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchair.codegen import eager
from torchair.codegen.base.options import CodegenOptions
from torchair.codegen.base.programs import Boxed, FxCode, NonSerializableCode
from torchair.codegen.inductor import inductor_program
from torchair.codegen.inductor.device_mapping import DeviceMapping
from torchair.codegen.native import native_library, native_program
from torchair.core.errors import BadOption
from torchair.core.program import Code, Program
from torchair.core.torch_private.compilers.inductor import code_kept_in
from torchair.core.torch_private.fake.fake_tensors import disable_modes
from torchair.fxgraph.external_constants import has_external

__all__ = ["BUILDING", "COMPILERS", "RESERVED", "CodegenOptions", "build", "load"]

BUILDING = threading.RLock()
# The thread that builds does not exist in a forked child.
os.register_at_fork(after_in_child=BUILDING._at_fork_reinit)  # type: ignore[attr-defined]
DEFAULT = CodegenOptions()
COMPILERS = ("inductor", "native")
"""Code generators that compile for one device."""
RESERVED = frozenset(
    name
    for options in (
        inductor_program.OPTIONS,
        inductor_program.KEEP,
        inductor_program.GUARDED,
        native_library.OPTIONS,
    )
    for name in options
)
"""Options of Inductor that every build sets itself."""


def build(kind: str, gm: fx.GraphModule, inputs: Sequence[Any], how: CodegenOptions = DEFAULT) -> Program:
    """Compile an ATen graph.

    Args:
        kind: `eager`, `fx`, `inductor` or `native`.
        gm: the graph. It is not changed.
        inputs: fake inputs of the graph.
        how: code generation options.

    Returns:
        A program. Its code can be loaded again (`load`).

    Raises:
        BadOption: if there is no such code generator.
        NotPossible: if the code generator does not support the graph.
    """
    if kind in COMPILERS:
        return DeviceMapping.of(gm).build(gm, inputs, lambda gm, inputs: _tied(kind, gm, inputs, how))
    return _tied(kind, gm, inputs, how)


def _tied(kind: str, gm: fx.GraphModule, inputs: Sequence[Any], how: CodegenOptions) -> Program:
    program = _build(kind, gm, inputs, how)
    if has_external(gm):
        program.code = NonSerializableCode(program.code)
    return program


def _build(
    kind: str, gm: fx.GraphModule, inputs: Sequence[Any], how: CodegenOptions
) -> Boxed | native_program.Native:
    match kind:
        case "eager":
            return eager.build(gm, inputs)
        case "fx":
            return FxCode(gm).load()
        case "inductor":
            # Inductor's options are global: one build at a time.
            with BUILDING, code_kept_in(how.folder):
                return inductor_program.build(gm, inputs, how)
        case "native":
            with BUILDING, code_kept_in(how.folder):
                return native_program.build(gm, inputs, how)
    raise BadOption(f"unknown code generator {kind!r}", near="eager, inductor, native")


def load(code: Code) -> Program:
    """Load a program from its code, in this process or another."""
    with BUILDING, disable_modes(), torch.no_grad():  # Inductor's directory is global
        return code.load()
