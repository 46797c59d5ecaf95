"""Guard programs that are right only for one offset of an input in its storage."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from torchair.backend.pipeline.context import Stage
from torchair.codegen.base.programs import Anchored, StorageOffsets
from torchair.codegen.eager import generate
from torchair.core.program import Program
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import is_symbol


def runs_as_it_is(program: Program, stage: Stage) -> bool:
    """Do the ops of the graph itself run, and not what conversion or a compiler made of them?"""
    is_fx = stage.settings.run_eagerly or stage.settings.is_untouched or not stage.uses_ir
    return program.kind in ("eager", "fx") and is_fx


def guard_storage_offsets(
    program: Program, stage: Stage, original: fx.GraphModule, absolute: Iterable[int]
) -> Program:
    """A program that counts from the start of an input's storage is right for one offset in it; for others
    the ops run one by one.
    """
    if runs_as_it_is(program, stage):
        return program
    offsets = {
        index: offset for index in absolute if not is_symbol(offset := stage.inputs[index].storage_offset())
    }
    if not offsets:
        return program
    anchor = StorageOffsets(offsets, len(placeholders(original)))
    return Anchored(program, anchor, generate(original), stage.degradations)
