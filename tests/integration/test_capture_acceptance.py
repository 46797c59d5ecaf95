"""The acceptance list of capture mode, item by item, through `torch.compile` on every device.

Where a device has no graphs, the program runs directly with the same keys, counters and limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchair.core.torch_private.compilers.aot_autograd import dynamo_counters
from torchair.npugraph_ex import CompilerConfig, compile_fx, get_compiler, get_npu_backend

GROUP = "npugraph_ex"


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    dynamo_counters.pop(GROUP, None)
    with torch.no_grad():
        yield
    dynamo_counters.pop(GROUP, None)


def compile_for_capture(
    function: Callable[..., Any], *, dynamic: bool = False, **options: Any
) -> Callable[..., Any]:
    """In capture mode, with generated Python: this is about recordings, not about kernels."""
    options = {"codegen": "eager", **options}
    return torch.compile(function, backend="npugraph_ex", dynamic=dynamic, options=options)


def counted(name: str) -> int:
    """The sum of a counter over all graphs."""
    return sum(value for key, value in dynamo_counters[GROUP].items() if key.startswith(f"{name}_graph"))


def test_01_two_calls_one_capture(device: torch.device) -> None:
    run = compile_for_capture(lambda x: (x * 2).relu() + 1)
    x = torch.randn(4, 3, device=device)
    for _ in range(2):
        torch.testing.assert_close(run(x), (x * 2).relu() + 1)
    assert counted("captured") == 1


def test_02_shapes_are_keys(device: torch.device) -> None:
    run = compile_for_capture(lambda x: x.softmax(-1), dynamic=True)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 4, device=device)
        torch.testing.assert_close(run(x), x.softmax(-1))
    assert counted("captured") == 2


def test_03_a_moved_mutated_input_is_recorded_again(device: torch.device) -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2

    run, x = compile_for_capture(step), torch.ones(4, device=device)
    for cache in (torch.zeros(4, device=device), torch.full((4,), 5.0, device=device)):
        start = cache.clone()
        for count in (1, 2):
            torch.testing.assert_close(run(cache, x), (start + count * x) * 2)
            torch.testing.assert_close(cache, start + count * x)
    assert counted("recapture_due_to_mutated_input_change") == 1
    assert counted("captured") == 1


@pytest.mark.parametrize("clone_input", [True, False])
def test_04_a_moved_plain_input_is_copied(device: torch.device, clone_input: bool) -> None:
    run = compile_for_capture(lambda x: x * 3, clone_input=clone_input)
    kept = [torch.full((4,), float(value), device=device) for value in range(5)]
    for x in kept:
        torch.testing.assert_close(run(x), x * 3)
    assert counted("captured") == 1
    assert [x.unique().tolist() for x in kept] == [[float(value)] for value in range(5)]


@pytest.mark.filterwarnings("ignore:frozen_parameter")
@pytest.mark.parametrize("frozen", [True, False])
def test_05_a_moved_parameter_is_bound_again(device: torch.device, frozen: bool) -> None:
    model = torch.nn.Linear(4, 4, device=device)
    run = compile_for_capture(model, frozen_parameter=frozen)
    x = torch.randn(2, 4, device=device)
    for value in (None, 2.0, 3.0):
        if value is not None and not frozen:
            model.weight.data = torch.full((4, 4), value, device=device)
        for _ in range(3):
            torch.testing.assert_close(run(x), model(x))
    assert counted("captured") == 1  # no growth


def test_06_at_the_limit_the_least_recently_used_goes(device: torch.device) -> None:
    run = compile_for_capture(lambda x: x.cumsum(0), dynamic=True, capture_limit=1)
    for rows in (3, 5, 5, 5, 3, 3):
        x = torch.randn(rows, 4, device=device)
        torch.testing.assert_close(run(x), x.cumsum(0))
    assert counted("captured") == 1


def test_07_force_recapture_counts_every_call(device: torch.device) -> None:
    run, x = compile_for_capture(lambda x: x + 1, force_recapture=True), torch.ones(3, device=device)
    for _ in range(4):
        run(x)
    assert counted("recapture_due_to_force_recapture") == 3


@pytest.mark.parametrize("clone_output", [True, False])
def test_08_held_outputs_stay(device: torch.device, clone_output: bool) -> None:
    run = compile_for_capture(lambda x: x * 2, clone_output=clone_output)
    kept = [run(torch.full((4,), float(value), device=device)) for value in range(6)]
    assert [y.unique().tolist() for y in kept] == [[2.0 * value] for value in range(6)]
    assert len({y.untyped_storage().data_ptr() for y in kept}) == 6


def test_09_a_users_pool_is_shared(device: torch.device) -> None:
    token = torch.cuda.graph_pool_handle() if device.type == "cuda" else (1, 0)
    gm = torch.fx.symbolic_trace(lambda x: [x * 2])
    pools = []
    for options in ({"use_graph_pool": token}, {"use_graph_pool": token}, {}, {}):
        with pytest.warns(UserWarning, match="use_graph_pool") if options else _nothing():
            runner = compile_fx(gm, [torch.ones(3, device=device)], options)
        assert runner(torch.ones(3, device=device))[0].tolist() == [2.0] * 3
        pools.append(runner.report().pool)
    assert pools[0] == pools[1] == token
    assert len(set(pools)) == 3


def _nothing() -> Any:
    return torch.no_grad()


def test_10_aliases_survive_a_switch_of_keys(device: torch.device) -> None:
    def views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = y * 2
        return x, x.view(-1), x[0], z, z[1:]

    run = compile_for_capture(views, dynamic=True)
    for rows in (3, 5, 3, 5):
        x, y = torch.randn(rows, 4, device=device), torch.randn(rows, 4, device=device)
        for _ in range(2):
            got = run(x, y)
            torch.testing.assert_close(got, views(x, y))
            assert got[0] is x or got[0].data_ptr() == x.data_ptr()
            assert got[1].data_ptr() == got[2].data_ptr() == x.data_ptr()
            assert got[3].untyped_storage().data_ptr() == got[4].untyped_storage().data_ptr()


ROWS_17: tuple[tuple[dict[str, Any], type[Exception]], ...] = (
    ({"no_such_option": 1}, ValueError),
    ({"capture_limit": 0}, ValueError),
    ({"capture_limit": "many"}, ValueError),
    ({"clone_input": "yes"}, ValueError),
    ({"capture_error_mode": "strict"}, ValueError),
    ({"post_grad_custom_pre_pass": 3}, TypeError),
    ({"data_dump_dir": "/no/such/directory"}, FileNotFoundError),
    ({"_vllm_aclnn_static_kernel_sym_range": 7}, TypeError),
    ({"super_kernel_optimize_options": 7}, TypeError),
)


@pytest.mark.parametrize(("options", "error"), ROWS_17)
def test_17_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        compile_fx(torch.fx.symbolic_trace(lambda x: [x * 2]), [torch.ones(3)], options)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compile_for_capture(lambda x: x * 2, **options)(torch.ones(3))
    assert isinstance(caught.value.inner_exception, error)


def test_21_compile_fx_in_a_users_backend(device: torch.device) -> None:
    seen = []

    def inner(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(compile_fx(gm, inputs, {"clone_input": False, "capture_limit": 2}))
        return seen[-1]

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return torch._dynamo.backends.common.aot_autograd(fw_compiler=inner)(gm, inputs)

    run = torch.compile(lambda x: (x @ x).relu(), backend=backend)
    x = torch.randn(4, 4, device=device)
    for _ in range(3):
        torch.testing.assert_close(run(x), (x @ x).relu())
    assert len(seen) == 1
    assert (seen[0].report().why_not is None) == (device.type == "cuda")


def test_24_force_eager_gives_the_same_numbers(device: torch.device) -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.sin(), x.cos()], 0).cumsum(0)

    x = torch.randn(5, 4, device=device)
    eager, captured = compile_for_capture(work, force_eager=True), compile_for_capture(work)
    for _ in range(3):
        torch.testing.assert_close(eager(x), captured(x))
    assert counted("captured") == 1


def test_doors_of_the_package(device: torch.device) -> None:
    config = CompilerConfig()
    config.capture_limit = 3
    run = torch.compile(lambda x: x * 2, backend=get_npu_backend(compiler_config=config))
    assert run(torch.ones(3, device=device)).tolist() == [2.0] * 3
    direct = get_compiler(config)(torch.fx.symbolic_trace(lambda x: [x * 2]), [torch.ones(3, device=device)])
    assert direct(torch.ones(3, device=device))[0].tolist() == [2.0] * 3
    with pytest.raises(ValueError, match="no_such"):
        config.no_such = 1


def test_15_lengths_of_attention_are_no_keys(device: torch.device) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        return torch.ops.npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=2, scale=0.5, input_layout="BSND", actual_seq_lengths_kv=lengths
        )[0]

    q = torch.randn(2, 1, 2, 8, device=device)
    k, v = (torch.randn(2, 16, 2, 8, device=device) for _ in range(2))
    run = compile_for_capture(attend, dynamic=True)
    for lengths in ([5, 7], [6, 8], [9, 3], [2, 16], [7, 7]):
        torch.testing.assert_close(run(q, k, v, lengths), attend(q, k, v, lengths))
    assert counted("captured") == 1


# Items that are about one pass or tool have their tests beside the others of that pass or tool.
ELSEWHERE = {
    11: (
        "passes/fx/test_fx.py",
        "test_reinplace_input_mutated_ops",
        "test_an_old_value_that_is_still_read_is_not_overwritten",
    ),
    12: ("passes/fx/test_fx.py", "test_remove_noop_ops", "test_a_clone_that_is_returned_stays"),
    13: (
        "passes/fx/inplace/test_remove_cat_ops.py",
        "test_producers_write_into_slices",
        "test_cats_that_stay",
    ),
    14: (
        "passes/fx/inplace/test_reinplace.py",
        "test_a_reader_on_another_stream_without_an_event_vetoes",
        "test_a_reader_on_another_stream_with_an_event_does_not",
    ),
    20: (
        "debug/dumps/test_tensor_dump.py",
        "test_every_tensor_of_every_call",
        "test_arrays_of_the_untouched_graph",
    ),
    22: (
        "passes/fx/streams/test_streams.py",
        "test_balanced_scopes_are_valid",
        "test_unbalanced_scopes_are_an_error",
    ),
    23: (
        "passes/fx/test_fx.py",
        "test_register_replacement_fires_and_can_be_vetoed",
        "test_a_replacement_does_not_cross_streams",
    ),
    25: (
        "debug/traces/test_deadlock.py",
        "test_concurrent_and_too_many_cores",
        "test_ordered_through_a_third_stream",
    ),
}


@pytest.mark.parametrize("item", ELSEWHERE)
def test_item_has_its_tests(item: int) -> None:
    path, *names = ELSEWHERE[item]
    text = (Path(__file__).parents[1] / path).read_text(encoding="utf-8")
    assert [name for name in names if f"def {name}(" not in text] == []
