"""Write standalone code: a module with `kernel(*args)` gets a `main` that calls it with random inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchair.core.registries.vendor_plugin import PLUGIN
from torchair.core.torch_private.fake.fake_tensors import tree_flatten, without_modes
from torchair.fxgraph.layout import Layout
from torchair.fxgraph.symbols import is_symbol

MAIN = '''
def random_tensor(size, stride, dtype, device):
    made = torch.empty_strided(size, stride, dtype=dtype, device=device)
    is_real = dtype.is_floating_point or dtype.is_complex
    return made.copy_(torch.randn(size) if is_real else torch.randint(0, 2, size))


def main():
    """Call the kernel with random inputs of the shapes it was traced with."""
    return kernel(
{arguments}
    )


if __name__ == "__main__":
    print(main())
'''
VIEWS = """
def kernel(*args, inner=kernel):
    results = inner(*args)
{lines}
    return results

"""
KINDS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


@without_modes
def module_text(program: Any, inputs: Sequence[Any]) -> str:
    """Return the text of `output_code.py`, or the repr of a program without source text."""
    write = getattr(program, "standalone", None)
    text = None if write is None or program.kind == "native" else write()  # a native library has no source
    if text is None:
        return program.source
    return f"import torchair  # its ops\n{text}\n{main_text(inputs)}"


def main_text(inputs: Sequence[Any]) -> str:
    """Return the `main` of a module whose `kernel` accepts these inputs. The module imports torch."""
    arguments = "\n".join(f"        {_argument(value)}," for value in inputs)
    devices = {value.device.type for value in inputs if isinstance(value, torch.Tensor)}
    brings = f"\nimport {PLUGIN}  # registers the device\n" if "npu" in devices else ""
    return brings + MAIN.format(arguments=arguments)


def views_text(layouts: Sequence[Layout | None]) -> str:
    """Return a wrapping `kernel` that adds results which are views of arguments."""
    left_out = [(place, item) for place, item in enumerate(layouts) if item is not None and item.is_left_out]
    if not left_out:
        return ""
    return VIEWS.format(lines="\n".join(f"    {_view(place, layout)}" for place, layout in left_out))


def _view(place: int, layout: Layout) -> str:
    text = f"args[{layout.base}]"
    for step in layout.steps:
        if any(map(is_symbol, tree_flatten((step.args, step.kwargs))[0])):
            return f"# result {place} is a view of argument {layout.base} with dynamic sizes: None here"
        args = [repr(value) for value in step.args]
        args[step.place : step.place] = [text]
        args += [f"{name}={value!r}" for name, value in step.kwargs.items()]
        text = f"torch.ops.{step.target}({', '.join(args)})"
        text += "" if step.item is None else f"[{step.item}]"
    return f"results[{place}] = {text}"


def _argument(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        size, stride = tuple(map(_number, value.size())), tuple(map(_number, value.stride()))
        return f"random_tensor({size}, {stride}, {value.dtype}, {str(value.device)!r})"
    return repr(_number(value))


def _number(value: Any) -> Any:
    """Return the value that a symbol had during tracing; 2 if it depends on data."""
    if not is_symbol(value):
        return value
    return KINDS[type(value)](value.node.hint if value.node.has_hint() else 2)
