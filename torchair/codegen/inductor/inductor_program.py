"""Generate code with Inductor. The program is the generated wrapper with minimal overhead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from torchair.codegen.base import graph_prep
from torchair.codegen.base.options import CodegenOptions
from torchair.codegen.base.programs import Boxed, FxCode
from torchair.codegen.eager import KERNEL, literal
from torchair.codegen.inductor.frozen_views import FrozenViews, ProgramWithViews, extract_views
from torchair.codegen.inductor.fx_fixups import apply_fixups
from torchair.codegen.inductor.gemv import rewrite_gemv
from torchair.core.native.memory_overlap import overlap_safe_writes
from torchair.core.torch_private.compilers.inductor import (
    BoxedBool,
    BoxedDeviceIndex,
    compile_fx_inner,
    compiled_callable,
    fake_tracing,
    generated_source,
    inductor_config,
    known_options,
    stable_cache_keys,
)
from torchair.core.torch_private.compilers.inductor_modules import GeneratedModule
from torchair.devices import get_device
from torchair.fxgraph.external_constants import has_external
from torchair.fxgraph.fake_values import device_of
from torchair.fxgraph.placeholders import output, returned

# Each process that loads a kernel would try smaller reduction blocks, not only the first one. On an H200 they
# gained nothing.
OPTIONS = {"fx_graph_cache": True, "cpp_wrapper": False, "dynamic_scale_rblock": False}
NO_CACHE = {"fx_graph_cache": False, "force_disable_caches": True}
# External constants: Inductor writes small ones into the code, and its cache would return copies of them.
KEEP = {"always_keep_tensor_constants": True, **NO_CACHE}
SEARCH = {"coordinate_descent_tuning": True}
SEARCHED = 1 << 20  # minimum elements of a matrix for which a search for block sizes pays off
# Checks in the generated wrapper on each call. Dynamo's guards have already checked the same facts.
GUARDED = {"size_asserts": False, "alignment_asserts": False, "nan_asserts": False, "scalar_asserts": False}


def build(gm: fx.GraphModule, inputs: Sequence[Any], how: CodegenOptions) -> Boxed:
    """Compile with Inductor. A second build of the same graph is loaded from its cache on disk."""
    mode = graph_prep.fake_mode_of(gm, inputs)
    device = device_of(gm)
    has_custom_ops = any(graph_prep.is_custom(node.target) for node in gm.graph.nodes)
    options = (
        OPTIONS
        | (GUARDED if how.guarded and not has_custom_ops else {})
        | (NO_CACHE if not how.cached else {})
        | (KEEP if has_external(gm) else {})
        | dict(how.options)
    )
    with inductor_config.patch(known_options(options)):  # decompositions read them, too
        gm = graph_prep.prepare(gm, inputs, decomposed=how.decomposed)
    row = get_device(device)
    largest = rewrite_gemv(gm, mode) if how.tuned and row.tuned and mode is not None else 0
    if largest:
        options |= row.tuned
    if largest >= SEARCHED:
        options |= SEARCH
    options |= how.options
    with (
        inductor_config.patch(known_options(options)),
        overlap_safe_writes(),
        fake_tracing(mode),
        stable_cache_keys(),
    ):
        gm = apply_fixups(gm, mode)
        keep_output_strides(gm)
        views = extract_views(gm, how.static) if how.frozen else None
        given, static = with_views(inputs, how.static, views)
        compiled = compile_fx_inner(
            gm,
            given,
            static_input_idxs=static,
            cudagraphs=BoxedBool(False),
            is_backward=how.backward,
            is_inference=how.inference,
            boxed_forward_device_index=BoxedDeviceIndex(None),
        )
    code = InductorCode.of(compiled, gm)
    program = LazyInductorProgram(code, compiled) if isinstance(code, InductorCode) else code.load()
    return program if views is None else ProgramWithViews(program, views)


def with_views(
    inputs: Sequence[Any], static: Sequence[int], views: FrozenViews | None
) -> tuple[list[Any], list[int]]:
    """Return the example inputs and the indices of static ones; views of static inputs are static, too."""
    made = [] if views is None else list(views.fakes)
    return [*inputs, *made], [*static, *range(len(inputs), len(inputs) + len(made))]


def keep_output_strides(gm: fx.GraphModule) -> None:
    """Make Inductor keep the strides of all outputs of the FX graph."""
    values = returned(gm)
    output(gm).meta["user_visible_output_idxs"] = [
        index for index, value in enumerate(values) if isinstance(value, fx.Node)
    ]


@dataclass(frozen=True)
class InductorCode:
    """The wrapper that Inductor generated, its constants, and the files that it loads."""

    source: str
    module: GeneratedModule
    kind = "inductor"

    @staticmethod
    def of(compiled: Any, gm: fx.GraphModule) -> InductorCode | FxCode:
        """Return the code of Inductor's result, or the graph itself if Inductor found nothing to compile."""
        source = generated_source(compiled)
        return InductorCode(source, GeneratedModule.of(compiled)) if source else FxCode(gm, "inductor")

    def load(self) -> Boxed:
        """Load the program."""
        return Boxed(self, self.module.load(self.source))

    def standalone(self) -> str | None:
        """Return the generated wrapper as a standalone module, or None if a constant cannot be written as
        text.
        """
        texts = {name: literal(value) for name, value in self.module.constants.items()}
        if None in texts.values():
            return None
        source = self.source.partition('\nif __name__ == "__main__":')[0]  # measures on random inputs
        values = "".join(f"{name} = {text}\n" for name, text in texts.items())
        return f"import torchair  # its ops\n{source}\n{values}\n{KERNEL.format('call')}"


class LazyInductorProgram(Boxed):
    """The first call goes through Inductor's wrapper, which ends the autotune cache; later calls do not."""

    __slots__ = ()

    def __init__(self, code: InductorCode, compiled: Any) -> None:
        direct = compiled_callable(compiled)

        def first(args: list[Any]) -> Sequence[Any]:
            result = compiled(args)
            self.run = direct
            return result

        super().__init__(code, first)
