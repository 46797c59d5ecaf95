"""Write a script that reproduces a mismatch: the fewest calls, their inputs, and the comparison."""

from __future__ import annotations

import base64
import math
import operator
import re
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from torchair.compare.base.culprit import LocatedMismatch
from torchair.compare.base.graph_history import COMPILED, CONVERSION, FX_PASS, GE_PASS, LOWERING, REPLAYED
from torchair.compare.base.replay_call import RecordedCall, Values
from torchair.compare.base.subgraph import Subgraph, calls_of, neighborhood, part_of
from torchair.compare.locate.converter_or_kernel import USERS
from torchair.compare.stage_comparison import StageComparison, first_wrong, trace_stages
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.json_form import JsonForm
from torchair.core.native.memory_overlap import is_dense
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.placeholders import placeholders, returned

LARGEST = 1 << 20  # maximum bytes of an input that are written into a script
FEW = 16  # up to this many elements are always written as values
SEEN = (FX_PASS, CONVERSION, GE_PASS, LOWERING)
"""Stages that are checked without generating code."""
TEMPLATE = '''"""{title}

Written by torchair.debug.compare. It reproduces the mismatch on the machine where it occurred. The exit
status is 1 as long as the mismatch exists.
"""

import base64
import operator
import zlib

import torch

import torchair
{imports}

def graph({parameters}):
{body}


def tensor(dtype, size, stride, text):
    data = bytearray(zlib.decompress(base64.b85decode(text)))
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return torch.empty_strided(size, stride, dtype=dtype).copy_(flat.view(size))


def noise(dtype, size, stride, low, high):
    made = torch.rand(size, generator=generator, dtype=torch.float64) * (high - low) + low
    return torch.empty_strided(size, stride, dtype=dtype).copy_(made)


generator = torch.Generator().manual_seed(0)
INPUTS = [
{inputs}
]
{config}

FUNCTIONS = globals().get("FUNCTIONS", {{}})

if __name__ == "__main__":
    if None in FUNCTIONS.values():
        raise SystemExit("add the functions to FUNCTIONS first")
    comparison = torchair.debug.compare(graph, *INPUTS, config=CONFIG{dynamic})
    print(comparison)
    raise SystemExit(not comparison.ok)
'''


def make_repro(comparison: StageComparison, *, dynamic: bool | None) -> str:
    """Return the script; empty if the graph cannot be written as one."""
    assert comparison.wrong is not None and comparison.recorded is not None, "a mismatch was found in a call"
    row, mismatch = comparison.wrong
    gm = mismatch.graph or comparison.history.given
    values = comparison.recorded.values(gm).values
    part = _minimize(comparison, mismatch, gm, values)
    if any(call.target not in PLAIN and not isinstance(call.target, OpOverload) for call in part.nodes):
        return ""
    constants = part.gm.graph.find_nodes(op="get_attr")
    given = [(node.name, value) for node, value in zip(placeholders(part.gm), part.args(values), strict=True)]
    given += [(node.name, operator.attrgetter(str(node.target))(part.gm)) for node in constants]
    written = _inputs(comparison, part, [value for _, value in given])
    return TEMPLATE.format(
        title=f"{mismatch.culprit} gives wrong numbers in {row.stage}.",
        imports="".join(f"# {line}\n" for line in _notes(part, mismatch.culprit.name)),
        parameters=", ".join(name for name, _ in given),
        body="\n".join(f"    {line}" for line in _body(part.gm)),
        inputs="\n".join(f"    {text}," for text in written),
        config=_config(comparison.ctx.settings.config),
        dynamic="" if dynamic is None else f", dynamic={dynamic}",
    )


def _minimize(
    comparison: StageComparison, mismatch: LocatedMismatch, gm: fx.GraphModule, values: Values
) -> Subgraph:
    """Return the fewest calls around the wrong node in which the same stage is the first wrong one."""
    assert comparison.wrong is not None, "a mismatch was found"
    row, everything = (
        comparison.wrong[0],
        part_of(gm, calls_of(gm), [n for n in returned(gm) if isinstance(n, fx.Node)]),
    )
    if row.kind == COMPILED and mismatch.nodes:
        return part_of(gm, mismatch.nodes)
    if row.kind in (COMPILED, REPLAYED) or (not mismatch.nodes and mismatch.node not in set(gm.graph.nodes)):
        return everything
    node = mismatch.node if mismatch.node in set(gm.graph.nodes) else mismatch.nodes[0]
    assert node is not None, "a subgraph contains a node"
    wider = ((0, False), (1, False), (0, True), (1, True), (2, True), (4, True), (8, True))
    seen = set[int]()
    for nodes in (
        set(mismatch.nodes),
        *(neighborhood(gm, node, levels, users=users) for levels, users in wider),
    ):
        if not nodes or len(nodes) in seen:
            continue
        seen.add(len(nodes))
        part = part_of(gm, nodes)
        if part.outputs and _shows(comparison, part, part.args(values)):
            return part
    return everything


def _shows(comparison: StageComparison, part: Subgraph, args: list[Any]) -> bool:
    """Return whether the same stage is the first wrong one for this part of the graph."""
    assert comparison.wrong is not None, "a mismatch was found"
    try:
        history = trace_stages(part.gm, args, comparison.ctx.settings)
    except Exception:
        return False
    step = first_wrong(history, RecordedCall(args, comparison.ctx.device), comparison.options.judge)
    return step is not None and step.name == comparison.wrong[0].stage


PLAIN = {
    operator.add: "{} + {}",
    operator.sub: "{} - {}",
    operator.mul: "{} * {}",
    operator.floordiv: "{} // {}",
    operator.truediv: "{} / {}",
    operator.mod: "{} % {}",
    operator.getitem: "{}[{}]",
}


def _body(gm: fx.GraphModule) -> Iterator[str]:
    """Yield the calls as Python code."""
    for node in gm.graph.nodes:
        if node.op == "output":
            yield f"return {_text(tuple(node.args[0]))}"
        elif node.op == "call_function":
            arguments = [_text(argument) for argument in node.args]
            if node.target in PLAIN:
                yield f"{node.name} = {PLAIN[node.target].format(*arguments)}"
                continue
            arguments += [f"{name}={_text(argument)}" for name, argument in node.kwargs.items()]
            yield f"{node.name} = torch.ops.{node.target}({', '.join(arguments)})"


def _text(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{_text(item)}, ' for item in value).rstrip(' ')})"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _inputs(comparison: StageComparison, part: Subgraph, values: list[Any]) -> list[str]:
    """Return the inputs as expressions: noise if that reproduces the mismatch, else limited bytes."""
    assert comparison.wrong is not None, "a mismatch was found"
    generator = torch.Generator().manual_seed(0)
    count = len(part.inputs)
    made = {n: _noise(value, generator) for n, value in enumerate(values) if _can_be_noise(value)}
    noisy = [made.get(n, value) for n, value in enumerate(values)]
    is_seen = comparison.wrong[0].kind in SEEN and _shows(comparison, part, noisy[:count])
    return [
        _input(value, n in made and (is_seen or value.nbytes > LARGEST)) for n, value in enumerate(values)
    ]


def _can_be_noise(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel() > FEW
    return (
        is_tensor
        and not value.is_complex()
        and value.dtype is not torch.bool
        and bool(value.isfinite().all())
    )


def _noise(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the result of the function `noise` of a script."""
    low, high = float(value.min()), float(value.max())
    made = torch.rand(value.shape, generator=generator, dtype=torch.float64) * (high - low) + low
    kind = {"dtype": value.dtype, "device": value.device}
    return torch.empty_strided(value.shape, _stride(value), **kind).copy_(made)


def _stride(value: torch.Tensor) -> list[int]:
    """Return the strides of the value, or contiguous ones if elements share memory and cannot be written."""
    has_own = is_dense(value) or 0 not in value.stride()
    return list((value if has_own else torch.empty(value.shape, device="meta")).stride())


def _input(value: Any, as_noise: bool) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    spec = f"{value.dtype}, {list(value.shape)}, {_stride(value)}"
    where = "" if value.device.type == "cpu" else f".to({str(value.device)!r})"
    if as_noise:
        return f"noise({spec}, {float(value.min())!r}, {float(value.max())!r}){where}"
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return f"tensor({spec}, {base64.b85encode(zlib.compress(data)).decode()!r}){where}"


def _notes(part: Subgraph, culprit: str) -> list[str]:
    """Return the imports that the reader must add to the script."""
    own = (
        [f"Import the module that registers the converter of {culprit} here."]
        if culprit.endswith(USERS)
        else []
    )
    libraries = sorted({call.target.namespace for call in part.nodes if isinstance(call.target, OpOverload)})
    foreign = [name for name in libraries if name not in ("aten", "prims", "npu", "air")]
    return [*own, *(f"Import the module that registers the ops of {name} here." for name in foreign)]


def _config(config: Any) -> str:
    """Return the configuration as a statement. The reader must import functions in it."""
    if not isinstance(config, JsonForm):
        return "CONFIG = None"
    text = config.to_json()
    owner = "CompilerConfig" if isinstance(config, CompilerConfig) else "npugraph_ex.CompilerConfig"
    names = re.findall(r'"\$callable": "([^"]+)"', text)
    lines = [f"    {name!r}: None,  # set to the function" for name in names]
    functions = "\n".join(["FUNCTIONS = {", *lines, "}"]) + "\n" if names else ""
    rest = ", callables=FUNCTIONS" if names else ""
    return f"{functions}CONFIG = torchair.{owner}.from_json({text!r}{rest})"
