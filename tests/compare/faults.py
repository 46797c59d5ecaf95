"""Faults to be found: a wrong converter, kernel, pass, lowering rule or generated kernel each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import fx, nn

from tests.models.zoo import GROUPED, tokens
from torchair import ge
from torchair.backend.pipeline import compile, generate, ir
from torchair.convert.base import registry
from torchair.core.torch_private.compilers import inductor as private
from torchair.engine import registry as kernels
from torchair.fxgraph.edit import copy_graph
from torchair.passes.pass_manager import Step

aten = torch.ops.aten
Patch = pytest.MonkeyPatch


class Cnn(nn.Module):
    """Convolutions, a norm, two kinds of pooling and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.SiLU(), nn.AvgPool2d(2))
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.head(self.body(self.stem(x)).flatten(1)), -1)


def cnn() -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    return Cnn().eval(), {"x": torch.randn(2, 3, 16, 16)}


def llama() -> tuple[nn.Module, dict[str, Any]]:
    """Two layers with weights that are large enough for every op to matter."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**GROUPED, initializer_range=0.3)
    return transformers.LlamaForCausalLM(config).eval(), tokens(2, 7)


@dataclass(frozen=True)
class Fault:
    """Something wrong, and what is to be found: who, and at which node (of which op in the report)."""

    model: Callable[[], tuple[nn.Module, dict[str, Any]]]
    inject: Callable[[Patch], None]
    kind: str
    name: str
    node: str
    module: str = ""
    mode: str = "max-autotune"


def converter(target: Any, spoil: Callable[..., Any]) -> Callable[[Patch], None]:
    """Another converter for an op; it is given the right one first, where it takes `right`."""

    def inject(patch: Patch) -> None:
        right = registry._builtin[target]

        def wrong(*args: Any, meta_outputs: Any, **kwargs: Any) -> Any:
            extra = {"meta_outputs": meta_outputs} if right.wants_meta else {}
            return spoil(lambda *given: right.fn(*given, **kwargs, **extra), *args)

        row = dataclasses.replace(right, fn=wrong, wants_meta=True)
        patch.setitem(registry._builtin, target, row)

    return inject


def kernel(op: str, spoil: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """The kernel of an op, with something done to its result."""

    def inject(patch: Patch) -> None:
        row = kernels._kernels[op, None]

        def wrong(*args: Any, **attrs: Any) -> Any:
            return spoil(row.fn(*args, **attrs))

        patch.setitem(kernels._kernels, (op, None), dataclasses.replace(row, fn=wrong))

    return inject


def added_pass(listed: str, step: Callable[..., int]) -> Callable[[Patch], None]:
    """One more pass, behind all others of a list."""

    def inject(patch: Patch) -> None:
        for module in (compile, generate, ir):
            if hasattr(module, listed):
                patch.setattr(module, listed, (*getattr(module, listed), Step(step)))

    return inject


def decomposition(target: Any, spoil: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """The rule by which Inductor takes an op apart."""

    def inject(patch: Patch) -> None:
        table = private.inductor_decompositions()
        right = table[target]
        wrong = table | {target: lambda *args, **kwargs: spoil(right(*args, **kwargs))}
        patch.setattr(private, "inductor_decompositions", lambda: dict(wrong))

    return inject


def generated(
    matches: Callable[[fx.Node], bool], spoil: Callable[[fx.Graph, fx.Node], None]
) -> Callable[[Patch], None]:
    """A code generator that compiles something else, where the graph has a call like this."""

    def inject(patch: Patch) -> None:
        right = generate.build

        def build(kind: str, gm: fx.GraphModule, inputs: Any, *how: Any) -> Any:
            gm = copy_graph(gm)
            found = [node for node in gm.graph.nodes if matches(node)] if kind == "inductor" else []
            for node in found[:1]:
                spoil(gm.graph, node)
            gm.recompile()
            return right(kind, gm, inputs, *how)

        patch.setattr(generate, "build", build)

    return inject


def more(value: Any) -> Any:
    """Five percent too much."""
    if isinstance(value, list | tuple):
        return (more(value[0]), *value[1:])
    return value * 1.05


def first(gm: fx.GraphModule, target: Any) -> fx.Node | None:
    return next(iter(gm.graph.find_nodes(op="call_function", target=target)), None)


def negate_nothing(gm: fx.GraphModule, ctx: Any) -> int:
    """Takes the first negation out."""
    node = first(gm, aten.neg.default)
    if node is None:
        return 0
    node.replace_all_uses_with(node.args[0])
    gm.graph.erase_node(node)
    return 1


def other_activation(gm: fx.GraphModule, ctx: Any) -> int:
    """SiLU becomes GELU, as a new node."""
    node = first(gm, aten.silu.default)
    if node is None:
        return 0
    with gm.graph.inserting_before(node):
        made = gm.graph.call_function(aten.gelu.default, node.args)
        made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)
    return 1


def write_too_early(gm: fx.GraphModule, ctx: Any) -> int:
    """Squares in place what is read again later."""
    node = first(gm, aten.pow.Tensor_Scalar)
    if node is None:
        return 0
    node.target = aten.pow_.Scalar
    return 1


def lose_scale(gm: fx.GraphModule, ctx: Any) -> int:
    """Another constant in the first call that adds one: the epsilon of a norm."""
    node = next(
        (n for n in gm.graph.find_nodes(op="call_function", target=aten.add.Tensor) if n.args[1] == 1e-6),
        None,
    )
    if node is None:
        return 0
    node.args = (node.args[0], 1e-1)
    return 1


def other_type(graph: ge.Graph, ctx: Any) -> int:
    """The first 1/sqrt(x) becomes a square root."""
    op = next((op for op in graph.ops if op.type == "Rsqrt"), None)
    if op is None:
        return 0
    op.type = "Sqrt"
    return 1


def negate_products(graph: ge.Graph, ctx: Any) -> int:
    """Everybody reads the negative of what the last product computes."""
    op = next(op for op in reversed(graph.ops) if op.type.startswith("MatMul"))
    with graph:
        graph.origin = op.origin
        made = ge.Neg(op.outputs[0])
        graph.ops.remove(made.op)
        graph.ops.insert(graph.ops.index(op) + 1, made.op)
    graph.replace(op.outputs[0], made)
    graph.results = [
        dataclasses.replace(result, tensor=made)
        if getattr(result, "tensor", None) is op.outputs[0]
        else result
        for result in graph.results
    ]
    return 1


def wrong_activation(graph: fx.Graph, node: fx.Node) -> None:
    """The call computes something near."""
    with graph.inserting_after(node):
        made = graph.call_function(aten.mul.Tensor, (node, 1.05))
        made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    made.args = (node, 1.05)


def is_gated(node: fx.Node) -> bool:
    """An exponential to which something is added: only where both are compiled together."""
    return node.target is aten.exp.default and any(user.target is aten.add.Tensor for user in node.users)


def is_normed(node: fx.Node) -> bool:
    """A root that is multiplied: only where both are compiled together."""
    return node.target is aten.rsqrt.default and any(user.target is aten.mul.Tensor for user in node.users)


def is_relu(node: fx.Node) -> bool:
    return node.target is aten.relu.default


QUICK = {
    "kernel of Relu": Fault(cnn, kernel("Relu", lambda y: y + 0.1), "kernel", "Relu", "relu", "stem.2"),
    "decomposition of log_softmax": Fault(
        cnn,
        decomposition(aten._log_softmax.default, more),
        "decomposition",
        "aten._log_softmax.default",
        "_log_softmax",
    ),
}
REST = {
    "FX pass": Fault(llama, added_pass("FX_PASSES", negate_nothing), "FX pass", "negate_nothing", "neg"),
    "generated relu": Fault(
        cnn, generated(is_relu, wrong_activation), "generated code", "", "relu", "stem.2"
    ),
    "converter of silu": Fault(
        llama,
        converter(aten.silu.default, lambda right, x: more_op(right(x))),
        "converter",
        "aten.silu.default",
        "silu",
    ),
    "GE pass": Fault(
        cnn, added_pass("GE_PASSES", negate_products), "GE pass", "negate_products", "addmm", "head"
    ),
    "converter of rsqrt": Fault(
        llama,
        converter(aten.rsqrt.default, lambda right, x: right(ge.Add(x, 0.1))),
        "converter",
        "aten.rsqrt.default",
        "rsqrt",
    ),
    "converter of mean": Fault(
        llama,
        converter(aten.mean.dim, lambda right, x, dim, keep: ge.ReduceSum(x, dim, keep_dims=keep)),
        "converter",
        "aten.mean.dim",
        "mean",
    ),
    "converter of relu": Fault(
        cnn,
        converter(aten.relu.default, lambda right, x: ge.LeakyRelu(x, negative_slope=0.1)),
        "converter",
        "aten.relu.default",
        "relu",
    ),
    "converter of log_softmax": Fault(
        cnn,
        converter(aten._log_softmax.default, lambda right, x, dim, half: ge.SoftmaxV2(x, axes=[dim])),
        "converter",
        "aten._log_softmax.default",
        "_log_softmax",
        "",
    ),
    "converter of avg_pool2d": Fault(
        cnn,
        converter(aten.avg_pool2d.default, lambda right, *args: more_op(right(*args))),
        "converter",
        "aten.avg_pool2d.default",
        "avg_pool2d",
    ),
    "kernel of Swish": Fault(llama, kernel("Swish", more), "kernel", "Swish", "silu"),
    "kernel of Rsqrt": Fault(llama, kernel("Rsqrt", more), "kernel", "Rsqrt", "rsqrt"),
    "kernel of Mul": Fault(llama, kernel("Mul", more), "kernel", "Mul", "mul"),
    "kernel of MatMul": Fault(llama, kernel("MatMul", more), "kernel", "MatMul", "mm"),
    "kernel of Conv2D": Fault(cnn, kernel("Conv2D", more), "kernel", "Conv2D", "convolution", "stem.0"),
    "kernel of LogSoftmaxV2": Fault(
        cnn, kernel("LogSoftmaxV2", more), "kernel", "LogSoftmaxV2", "_log_softmax"
    ),
    "GE pass in place": Fault(llama, added_pass("GE_PASSES", other_type), "GE pass", "other_type", "rsqrt"),
    "FX pass, new node": Fault(
        llama, added_pass("FX_PASSES", other_activation), "FX pass", "other_activation", "silu"
    ),
    "FX pass, constant": Fault(llama, added_pass("FX_PASSES", lose_scale), "FX pass", "lose_scale", "add_3"),
    "capture pass": Fault(
        llama,
        added_pass("CAPTURE_PASSES", write_too_early),
        "FX pass",
        "write_too_early",
        "mul_3",
        mode="npugraph_ex",
    ),
    "decomposition of silu": Fault(
        llama, decomposition(aten.silu.default, more), "decomposition", "aten.silu.default", "silu"
    ),
    "generated norm": Fault(
        llama, generated(is_normed, wrong_activation), "generated code", "cpp_fused", "mul_3"
    ),
    "generated gate": Fault(cnn, generated(is_gated, wrong_activation), "generated code", "", "silu"),
}


def more_op(tensor: Any) -> Any:
    return ge.Mul(tensor, 1.05)
