"""Python arithmetic on sizes: converted, it stays on the host; as an operand it becomes data."""

from __future__ import annotations

import math

import pytest
import torch

from tests.convert.aten.test_pointwise import f16, f32, i64, make
from tests.convert.harness import check, compare, converted
from torchair.backend.dynamo.entry_points import get_npu_backend
from torchair.configs.compiler_config import CompilerConfig

SIZES = {
    "add": lambda a, b: a + b + 1, "sub": lambda a, b: 2 * a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "negative_mod": lambda a, b: (b - a) % 4,
    "power": lambda a, b: a**2, "neg": lambda a, b: -a + a * b,
    "max": lambda a, b: torch.sym_max(a, b + 3), "min": lambda a, b: torch.sym_min(a, b + 3),
    "sum": lambda a, b: torch.sym_sum([a, b, a, 4]), "ceil": lambda a, b: math.ceil(a / b),
    "floor": lambda a, b: math.floor(a / b), "trunc": lambda a, b: math.trunc(a / b),
    "round": lambda a, b: round(a / b), "sqrt": lambda a, b: math.trunc(torch.sym_sqrt(a) * 2),
    "float": lambda a, b: math.floor(torch.sym_float(a) * 1.5), "int": lambda a, b: torch.sym_int(a / b),
    "choose": lambda a, b: torch.sym_ite(a > b, a, b),
    "choose_equal": lambda a, b: torch.sym_ite(a == b, a, b + 1),
    "choose_not": lambda a, b: torch.sym_ite(torch.sym_not(a < b), a, b),
    "choose_both": lambda a, b: torch.sym_ite((a > b) & (a != 3), a, b),
    "choose_either": lambda a, b: torch.sym_ite((a < b) | (a >= 3), a, b),
    "log": lambda a, b: math.ceil(torch._sym_log2(a)), "abs": lambda a, b: abs(b - a),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_symbolic_number_as_size_equals_eager(name):
    """The number is a size of the result."""
    check(lambda x: torch.zeros(SIZES[name](x.shape[0], x.shape[1])) + 1, make(f32, 7, 3), dynamic=True)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dtype", [f32, i64])
def test_symbolic_number_as_operand_equals_eager(name, dtype):
    """The number is multiplied with data."""
    check(lambda x: x * SIZES[name](x.shape[0], x.shape[1]), make(dtype, 7, 3), dynamic=True)


FLOATS = {
    "truediv": lambda a, b: a / b, "inverse_root": lambda a, b: 1 / torch.sym_sqrt(a),
    "power": lambda a, b: (a / b) ** 0.5, "product": lambda a, b: a * 0.25,
    "cos": lambda a, b: torch._sym_cos(torch.sym_float(a)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [f32, f16])
@pytest.mark.parametrize("name", FLOATS)
def test_symbolic_float_as_operand_equals_eager(name, dtype):
    check(lambda x: x * FLOATS[name](x.shape[0], x.shape[1]), make(dtype, 7, 3), dynamic=True)


def test_number_of_elements_and_sizes():
    check(lambda x: x.reshape(x.numel()) + x.numel(), make(f32, 7, 3), dynamic=True)
    check(lambda x: x + torch.ops.aten.sym_size.int(x, -1), make(f32, 7, 3), dynamic=True)


def test_sizes_stay_on_the_host():
    """No size is read back from data: the lowered graph has no item."""
    graph, report, _, _ = converted(
        lambda x: torch.zeros((x.shape[0] * 2 + 1) // x.shape[1]), [make(f32, 7, 3)], True
    )
    assert not report.fallbacks
    assert {"FloorDiv", "Mul", "Add"} <= {op.type for op in graph.ops}


def test_constant_arithmetic_follows_the_dtype():
    """Small types wrap and division by zero is infinite: such constants are data, not Python numbers."""

    def run(x):
        one = torch.scalar_tensor(200, dtype=torch.uint8)
        return (
            x + one * one,
            torch.scalar_tensor(1.0) / torch.scalar_tensor(0.0),
            torch.scalar_tensor(0.1) + 0.2,
        )

    check(run, make(f32, 3))


def filled(x, n):
    """A number from the data as a size, twice, and as an operand."""
    size = n.item()
    torch._check(size >= 0)
    torch._check(size < 10)
    return torch.full((size,), 2.0) + torch.arange(size), x * size


READ = {
    "as_sizes": (filled, torch.randn(3), torch.tensor(4)),
    "as_result": (lambda n: n.item(), torch.tensor(4)),
    "in_arithmetic": (lambda x, n: x * (n.item() * 2 + 1), torch.randn(3), torch.tensor([3]).int()),
    "all_digits": (lambda x: x.sum().item() / 3, torch.randn(3, dtype=torch.float64)),
    "a_float": (lambda x, y: y + x.item(), torch.tensor(0.1), torch.randn(2, dtype=torch.float64)),
    "16_bits": (lambda x, y: y + x.item(), torch.tensor(0.1).bfloat16(), torch.randn(2)),
    "a_bool": (lambda x: x.item(), torch.tensor(True)),
    "beside_reshapes": (lambda x: (x.reshape(()), x.item(), x.reshape(()) * 2), torch.tensor([2.5])),
    "two": (lambda a, b: (a.item() + b.item(), a * b.item()), torch.tensor(2), torch.tensor(5)),
    "twice": (lambda a: (a.item() + a.item(), a * a.item()), torch.tensor(2)),
    "of_a_result": (lambda a: torch.full((2,), (a * 2).item()), torch.tensor(2.5)),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", READ)
def test_numbers_read_from_data(name, dynamic):
    fn, *args = READ[name]
    report = check(fn, *args, dynamic=dynamic)
    assert report.converted["aten._local_scalar_dense.default"]


@pytest.mark.parametrize("codegen", ["reference", "eager"])
def test_compiled_graphs_read_anew_in_every_call(codegen):
    config = CompilerConfig()
    config.engine_config.codegen = codegen
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        fn = torch.compile(filled, backend=get_npu_backend(compiler_config=config), fullgraph=True)
        for number in (4, 5, 0):
            args = (torch.randn(3), torch.tensor(number))
            compare(fn(*args), filled(*args))
