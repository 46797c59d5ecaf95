"""The ways in: backend objects, names, direct calls, compilers; what they accept and what they refuse."""

from __future__ import annotations

import copy
import functools
import sys
import threading
import types
import warnings
from typing import Any

import pytest
import torch
from functorch.compile import aot_function
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from tests.support.process import python
from tests.support.slow import slow
from tests.support.training import backward_through_the_ir
from torchair import npugraph_ex
from torchair.backend.dynamo import entry_points
from torchair.backend.dynamo.aot import compile_dynamo
from torchair.core.diagnostics import STRICT
from torchair.core.errors import BadCall, BadOptionType, Degraded, DegradedWarning

MODES = ("max-autotune", "npugraph_ex")


class Net(nn.Module):
    """Two layers and a size that is a number in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))) * x.shape[0]


def config(mode: str = "max-autotune", codegen: str = "eager") -> torchair.CompilerConfig:
    made = torchair.CompilerConfig()
    made.mode = mode
    made.engine_config.codegen = codegen
    return made


def backend(mode: str = "max-autotune", codegen: str = "eager", **kwargs: Any) -> Any:
    return torchair.get_npu_backend(compiler_config=config(mode, codegen), **kwargs)


def test_the_backend_is_a_partial_that_shows_its_config() -> None:
    cfg = config()
    made = torchair.get_npu_backend(compiler_config=cfg)
    assert isinstance(made, functools.partial)
    assert made.keywords["compiler_config"] is cfg


@pytest.mark.parametrize("get", [torchair.get_npu_backend, torchair.npugraph_ex.get_npu_backend])
@pytest.mark.parametrize(("wrong", "text"), [
    (lambda get: get(config()), "only keyword arguments.*get_npu_backend\\(compiler_config=config\\)"),
    (lambda get: get({"mode": "npugraph_ex"}), "only keyword arguments.*'mode'"),
    (lambda get: get(compiler_config={"mode": "npugraph_ex"}), "must be a CompilerConfig.*'mode'.*options="),
    (lambda get: get(compiler_config="npugraph_ex"), "must be a CompilerConfig"),
])  # fmt: skip
def test_what_is_no_config_is_refused(get: Any, wrong: Any, text: str) -> None:
    with pytest.raises(TypeError, match=f"(?s){text}"):
        wrong(get)


@pytest.mark.parametrize(("mode", "captures"), [
    ("max-autotune", False), ("npugraph_ex", True), ("reduce-overhead", True),
])  # fmt: skip
def test_the_modes_of_torch_compile_act(mode: str, captures: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(gm: Any, inputs: Any, settings: Any, decompositions: Any) -> Any:
        seen.append(settings.captures)
        return compile_dynamo(gm, inputs, settings, decompositions)

    monkeypatch.setattr(entry_points, "compile_or_get_cached", spy)
    for made in ("npu", backend("npugraph_ex" if mode == "max-autotune" else "max-autotune")):
        torch.compiler.reset()
        torch.compile(torch.sin, backend=made, mode=mode)(torch.ones(2))
    assert seen == [captures, captures]


def test_other_modes_are_refused() -> None:
    for name, mode, text in (
        ("npu", "max-autotune-no-cudagraphs", "valid modes: max-autotune, reduce-overhead, npugraph_ex"),
        ("npugraph_ex", "max-autotune", "backend='npu'"),
    ):
        with pytest.raises(Exception, match=text) as caught:
            torch.compile(torch.sin, backend=name, mode=mode)(torch.ones(2))
        assert isinstance(caught.value.inner_exception, ValueError)  # type: ignore[attr-defined]


def test_a_mistyped_group_gets_a_suggestion() -> None:
    made = torchair.CompilerConfig()
    with pytest.raises(AttributeError, match="did you mean 'experimental_config'"):
        made.experimental_confg.frozen_parameter = True  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="did you mean 'frozen_parameter'"):
        made.experimental_config.frozen_paramter = True
    assert not hasattr(made, "no_such_group")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_equal_to_eager_and_one_graph_for_all_sizes(mode: str, dynamic: bool) -> None:
    net, calls = Net().eval(), 0
    inner = backend(mode)

    def counting(gm: Any, inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        return inner(gm, inputs)

    compiled = torch.compile(net, backend=counting, dynamic=dynamic, fullgraph=True)
    with torch.no_grad():
        for size in (3, 5, 7):
            x = torch.randn(size, 8)
            torch.testing.assert_close(compiled(x), net(x))
    assert calls == (1 if dynamic else 3)


@pytest.mark.parametrize("name", [slow("npu"), "npugraph_ex"])
def test_names_work_without_importing_torchair(name: str) -> None:
    script = (
        "import torch\n"
        "f = lambda x: torch.relu(x) + 1\n"
        f"y = torch.compile(f, backend={name!r}, options={{'codegen': 'eager'}})(torch.ones(3))\n"
        "assert y.tolist() == [2, 2, 2], y\n"
    )
    done = python(["-c", script])
    assert done.returncode == 0, done.stderr


def test_names_are_registered_without_entry_points() -> None:
    """As in a source tree that was never installed."""
    script = (
        "import importlib.metadata as m\n"
        "m.entry_points = lambda **kwargs: m.EntryPoints()\n"
        "import torch, torchair\n"
        "for name in ('npu', 'npugraph_ex'):\n"
        "    f = torch.compile(lambda x: torch.relu(x) + 1, backend=name, options={'codegen': 'eager'})\n"
        "    assert f(torch.ones(3)).tolist() == [2, 2, 2]\n"
        "assert torchair.npugraph_ex and torchair.ops and torchair.tools and torchair.ge\n"
    )
    done = python(["-c", script])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_called_directly_as_engines_do(mode: str) -> None:
    gm = make_fx(lambda x, y: (torch.relu(x) @ y,))(torch.randn(2, 3), torch.randn(3, 4))
    x, y = torch.randn(2, 3), torch.randn(3, 4)
    (result,) = backend(mode)(gm, [x, y])(x, y)
    torch.testing.assert_close(result, torch.relu(x) @ y)


@pytest.mark.parametrize("tracing", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("mode", MODES)
def test_get_compiler_takes_a_graph_from_make_fx(tracing: str, mode: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
        return [torch.relu(x) @ y, x.t(), x.shape[0] * 2]

    x, y = torch.randn(2, 3), torch.randn(3, 4)
    gm = make_fx(fn, tracing_mode=tracing)(x, y)
    inputs = [x, y] if tracing == "real" else [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
    compiled = torchair.get_compiler(config(mode))(gm, inputs)
    for rows in (2, 5) if tracing == "symbolic" else (2,):
        x = torch.randn(rows, 3)
        product, view, number = compiled(x, y)
        torch.testing.assert_close(product, torch.relu(x) @ y)
        assert view.data_ptr() == x.data_ptr()
        assert view.shape == (3, rows)
        assert number == 2 * rows
        assert isinstance(number, int)


def test_compile_fx_in_a_users_backend() -> None:
    from torch._functorch.aot_autograd import aot_module_simplified

    def inner(gm: Any, inputs: Any) -> Any:
        return npugraph_ex.compile_fx(gm, inputs, {"clone_input": False, "codegen": "eager"})

    def mine(gm: Any, inputs: Any) -> Any:
        return aot_module_simplified(gm, inputs, fw_compiler=inner, keep_inference_input_mutations=True)

    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(torch.sin, backend=mine)(x), torch.sin(x))


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_a_graph_that_returns_one_tensor(codegen: str) -> None:
    gm = make_fx(lambda x: torch.relu(x) + 1, tracing_mode="fake")(torch.ones(2))
    (result,) = npugraph_ex.compile_fx(gm, options={"codegen": codegen})(torch.ones(2))
    assert result.tolist() == [2, 2]


def test_artifacts_are_source_that_runs() -> None:
    gm = make_fx(lambda x: [x + 1], tracing_mode="fake")(torch.ones(2))
    compiled = torchair.get_compiler(config())(gm, [torch.ones(2)])
    artifacts = compiled.dump_artifacts()
    assert artifacts.version == "0.1"
    kernel = type(compiled).load_artifacts(artifacts)
    assert kernel(torch.ones(2))[0].tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="version"):
        type(compiled).load_artifacts(type(artifacts)("9.9", artifacts.py_code))


def test_options_stay_in_their_compilation() -> None:
    cfg = config()
    made = torchair.get_npu_backend(compiler_config=cfg)
    torch.compile(torch.sin, backend=made, options={"remove_noop_ops": False})(torch.ones(2))
    assert cfg == config()


def test_an_unknown_option_names_the_valid_ones() -> None:
    compiled = torch.compile(torch.sin, backend=backend(), options={"no_such": 1})
    with pytest.raises(Exception, match=r"(?s)no_such.*capture_limit") as caught:
        compiled(torch.ones(2))
    # Dynamo wraps it, with the name of its class before the text.
    assert isinstance(caught.value.inner_exception, ValueError)  # type: ignore[attr-defined]
    assert str(caught.value).count("UnknownOption") == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"aten.sin.default": torch.sin}, "is not an op"),
        ({torch.sin: torch.sin}, "is not an op"),
        ({torch.ops.aten.sin.default: 3}, "is not callable"),
    ],
    ids=["a name", "a torch function", "a value"],
)
def test_decompositions_that_could_never_act_are_refused(given: Any, match: str) -> None:
    with pytest.raises(BadOptionType, match=match):
        torchair.get_npu_backend(custom_decompositions=given)


def test_a_decomposition_of_a_packet_is_for_its_overloads() -> None:
    called: list[str] = []

    def sin(x: torch.Tensor) -> torch.Tensor:
        called.append("sin")
        return torch.cos(x - torch.pi / 2)

    made = torchair.get_npu_backend(custom_decompositions={torch.ops.aten.sin: sin})
    x = torch.ones(3)
    torch.testing.assert_close(torch.compile(torch.sin, backend=made)(x), torch.sin(x))
    assert called


def test_custom_decompositions_win() -> None:
    seen = []

    def sin(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape)
        return torch.cos(x - torch.pi / 2)

    made = backend(custom_decompositions={torch.ops.aten.sin.default: sin})
    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(torch.sin, backend=made)(x), torch.sin(x))
    assert seen


@pytest.mark.parametrize("mode", MODES)
def test_training_gives_eagers_gradients(mode: str) -> None:
    torch.manual_seed(0)
    net, twin = Net(), Net()
    twin.load_state_dict(net.state_dict())
    x = torch.randn(6, 8)
    compiled = torch.compile(net, backend=backend(mode), fullgraph=True)
    with backward_through_the_ir():
        compiled(x).square().mean().backward()
    compiled(x).square().mean().backward()
    for _ in range(2):
        twin(x).square().mean().backward()
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("mode", MODES)
def test_no_grad_and_inference_mode(mode: str) -> None:
    net, x = Net(), torch.randn(2, 8)
    compiled = torch.compile(net, backend=backend(mode))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), net(x))
    assert compiled(x).requires_grad


@pytest.mark.parametrize("mode", MODES)
def test_graph_breaks_keep_the_result(mode: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        torch._dynamo.graph_break()
        return y * 2 + x

    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(fn, backend=backend(mode))(x), fn(x))


@pytest.mark.parametrize("mode", MODES)
def test_several_threads_on_one_model(mode: str) -> None:
    net = Net().eval()
    compiled = torch.compile(net, backend=backend(mode), dynamic=True)
    inputs = [torch.randn(2 + n % 3, 8) for n in range(40)]
    with torch.no_grad():
        expected = [net(x) for x in inputs]
        compiled(inputs[0])
    wrong: list[int] = []

    def work(start: int) -> None:
        with torch.no_grad():
            for n in range(start, len(inputs), 4):
                if not torch.allclose(compiled(inputs[n]), expected[n], atol=1e-6):
                    wrong.append(n)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("mode", MODES)
def test_an_input_is_updated_in_place(mode: str) -> None:
    def fn(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[1] = x
        cache.add_(1)
        return cache.sum()

    for cache in (torch.zeros(3, 4), torch.zeros(4, 3).t()):
        mine, theirs = cache, cache.clone()
        address = mine.data_ptr()
        compiled = torch.compile(fn, backend=backend(mode), fullgraph=True)
        torch.testing.assert_close(compiled(mine, torch.ones(4)), fn(theirs, torch.ones(4)))
        torch.testing.assert_close(mine, theirs)
        assert mine.data_ptr() == address


def test_mode_mismatch_warns_once_with_path_and_value() -> None:
    cfg = torchair.CompilerConfig()
    cfg.debug.aclgraph.clone_input = False
    with pytest.warns(UserWarning, match="config.debug.aclgraph.clone_input:False"):
        torchair.get_npu_backend(compiler_config=cfg)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torchair.get_npu_backend()


def through_options(strict: bool) -> None:
    options = {"clone_input": False, "codegen": "eager", "strict": strict}
    torch.compile(torch.sin, backend="npu", options=options)(torch.ones(2))


def through_the_mode(strict: bool) -> None:
    cfg = config()
    cfg.ge_config.oo_level = "O1"
    cfg.engine_config.strict = strict
    made = torchair.get_npu_backend(compiler_config=cfg)
    torch.compile(torch.sin, backend=made, mode="npugraph_ex")(torch.ones(2))


def through_the_backend(strict: bool) -> None:
    cfg = config("npugraph_ex")
    cfg.experimental_config.enable_ref_data = True
    cfg.engine_config.strict = strict
    torch.compile(torch.sin, backend=torchair.get_npu_backend(compiler_config=cfg))(torch.ones(2))


def through_the_compiler(strict: bool) -> None:
    cfg = config()
    cfg.capture.force_recapture = True
    cfg.engine_config.strict = strict
    torchair.get_compiler(cfg)(make_fx(torch.sin)(torch.ones(2)), [torch.ones(2)])


def through_explain(strict: bool) -> None:
    cfg = config()
    cfg.debug.aclgraph.static_capture_size_limit = 8
    cfg.engine_config.strict = strict
    torchair.explain(torch.sin, torch.ones(2), compiler_config=cfg)


@pytest.mark.parametrize(
    "door", [through_options, through_the_mode, through_the_backend, through_the_compiler, through_explain]
)
def test_option_of_other_mode_warns_at_every_entry_point(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STRICT, raising=False)
    with pytest.warns(DegradedWarning, match="option .* has no effect: .* mode does not read it") as said:
        door(False)
    assert len(said) == 1, [str(one.message) for one in said]
    torch.compiler.reset()
    door(False)  # once in a process
    torch.compiler.reset()
    with pytest.raises(Exception, match="mode does not read it") as caught:
        door(True)
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), Degraded)


def test_compilation_does_not_repeat_backend_warning() -> None:
    cfg = config()
    cfg.debug.aclgraph.clone_input = False
    with pytest.warns(UserWarning, match="config.debug.aclgraph.clone_input:False") as said:
        torch.compile(torch.sin, backend=torchair.get_npu_backend(compiler_config=cfg))(torch.ones(2))
    assert len(said) == 1
    torch.compiler.reset()
    cfg.engine_config.strict = True
    with pytest.warns(UserWarning, match="clone_input:False"):
        made = torchair.get_npu_backend(compiler_config=cfg)
    with pytest.raises(Exception, match="clone_input=False has no effect"):
        torch.compile(torch.sin, backend=made)(torch.ones(2))


def test_run_eagerly_gives_the_same_numbers() -> None:
    cfg = config()
    cfg.debug.run_eagerly = True
    x = torch.randn(3, 8)
    net = Net().eval()
    compiled = torch.compile(net, backend=torchair.get_npu_backend(compiler_config=cfg))
    torch.testing.assert_close(compiled(x), net(x))


@pytest.mark.parametrize("codegen", ["reference", "inductor"])
def test_other_code_generators(codegen: str) -> None:
    x = torch.randn(3, 8)
    net = Net().eval()
    compiled = torch.compile(net, backend=backend(codegen=codegen), dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
        torch.testing.assert_close(compiled(x[:2]), net(x[:2]))


def test_capture_mode_shows_in_torch_npu_where_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in, device = types.ModuleType("torch_npu"), types.ModuleType("torch.npu")
    monkeypatch.setitem(sys.modules, "torch_npu", plug_in)
    monkeypatch.setattr(torch, "npu", device, raising=False)
    npugraph_ex._show_in_torch_npu()
    for owner in (plug_in, device):
        assert vars(owner)["npugraph_ex"].compile_fx is npugraph_ex.compile_fx
        assert vars(owner)["npugraph_ex"].register_replacement is npugraph_ex.register_replacement


def test_what_torch_npu_has_already_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in = types.ModuleType("torch_npu")
    vars(plug_in)["npugraph_ex"] = theirs = object()
    monkeypatch.setitem(sys.modules, "torch_npu", plug_in)
    npugraph_ex._show_in_torch_npu()
    assert vars(plug_in)["npugraph_ex"] is theirs
    assert not hasattr(torch, "npu"), "nothing is made up where the plug-in is not"


@pytest.mark.parametrize("name", ["npu", "npugraph_ex"])
def test_a_filter_of_guards_is_torch_compiles_own_option(name: str) -> None:
    """`torch.compile` takes it out of the options before the backend sees them."""
    model, x = Net().eval(), torch.randn(3, 8)
    options = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    with torch.no_grad():
        compiled = torch.compile(model, backend=name, options=options, dynamic=False)
        torch.testing.assert_close(compiled(x), model(x))


def test_a_loop_from_a_tracer_without_symbols() -> None:
    """`aot_function` has no shape environment where nothing is dynamic; Inductor asks for one in loops."""
    polynomial = torch.special.chebyshev_polynomial_u
    compiled = aot_function(polynomial, fw_compiler=torchair.get_compiler(config(codegen="inductor")))
    x, n = torch.tensor(0.3), torch.tensor(4.0)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, n), polynomial(x, n))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(BadOptionType, match="compiler_config must be a CompilerConfig"):
        torchair.explain(torch.sin, torch.ones(2), compiler_config={"mode": "max-autotune"})  # type: ignore[arg-type]
    with pytest.raises(BadOptionType, match="custom_decompositions must map"):
        torchair.get_npu_backend(custom_decompositions=[1])  # type: ignore[arg-type]
    with pytest.raises(Exception, match="options= expects option names as keys"):
        torch.compile(torch.sin, backend="npu", options={1: 2})(torch.ones(2))  # type: ignore[dict-item]


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
@pytest.mark.parametrize(
    ("args", "match"),
    [
        ((torch.ones(2, 3),), "expects 2 inputs"),
        ((torch.ones(2, 3), None), "NoneType instead of a tensor"),
        ((torch.ones(2, 3), torch.ones(3, dtype=torch.float64)), "torch.float64 instead of torch.float32"),
        ((torch.ones(2, 3), torch.ones(1)), r"sizes \(1,\) instead of \(3\)"),
        ((torch.ones(2, 3), torch.ones(3, device="meta")), "on meta instead of cpu"),
    ],
    ids=["count", "None", "dtype", "broadcast", "device"],
)
def test_a_graph_without_guards_refuses_other_inputs(mode: str, args: tuple[Any, ...], match: str) -> None:
    """Each of these was answered: with another dtype, broadcast, or by an error from deep inside."""
    example = [torch.ones(2, 3), torch.ones(3)]
    run = torchair.get_compiler(config(mode))(make_fx(lambda x, y: [x + y])(*example), example)
    with pytest.raises(BadCall, match=match):
        run(*args)
    assert run(*example)[0].tolist() == [[2.0] * 3] * 2


def test_sizes_that_are_one_symbol_are_one_in_every_call() -> None:
    gm = make_fx(lambda x, y: [x + y], tracing_mode="symbolic")(torch.ones(4), torch.ones(4))
    symbolic = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    run = torchair.get_compiler(config())(gm, symbolic)
    assert run(torch.ones(5), torch.ones(5))[0].tolist() == [2.0] * 5
    with pytest.raises(BadCall, match=r"sizes \(1,\) instead of \(5\)"):
        run(torch.ones(5), torch.ones(1))


@pytest.mark.parametrize(
    ("mode", "codegen"),
    [
        ("max-autotune", "eager"),
        ("max-autotune", "inductor"),
        ("max-autotune", "reference"),
        ("npugraph_ex", "eager"),
        ("npugraph_ex", "inductor"),
    ],
)
def test_parameters_may_be_constants_of_the_graph(mode: str, codegen: str) -> None:
    """`make_fx` of a module makes attributes of them; a weight that is updated in place is seen, and one that
    was equal to it is not.
    """
    first, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(2, 3)
    nn.init.zeros_(first[0].bias), nn.init.zeros_(first[1].bias)
    for net in (copy.deepcopy(first), first):  # the second could come from a cache
        gm = make_fx(functools.partial(_listed, net))(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error", DegradedWarning)
            run = torchair.get_compiler(config(mode, codegen=codegen))(gm, [x])
        for _ in range(2):
            torch.testing.assert_close(run(x)[0], net(x))
            with torch.no_grad():
                net[0].weight.mul_(2)
                net[0].bias.add_(1)


def _listed(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    return [net(x)]
