"""The sweep: families of `transformers` as tiny random models, eager against both modes.

    python -m tests.models.sweep                                 all of `FAMILIES`, results as they come
    python -m tests.models.sweep --family bert --family gpt2     these
    python -m tests.models.sweep --shard 1/4 --json /tmp/1.json  a part of them, kept for later
    python -m tests.models.sweep --codegen auto --dynamic        as users get it, sizes are symbols
    python -m tests.models.sweep --device cuda --codegen auto    on a GPU; launches are counted
    python -m tests.models.sweep --read /tmp/*.json --write docs/reference/models.md

A family has a time limit; one that runs over it is an `error` and the sweep goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

import torchair
from tests.models.families import FAMILIES, Tiny, Unfit, first_line, tiny
from tests.models.launches import launches
from tests.models.zoo import leaves
from torchair.core.log import logger
from torchair.core.text_table import markdown_lines, text_lines
from torchair.core.torch_private.compilers.inductor import inductor_config

MODES = ("max-autotune", "npugraph_ex")
EQUAL = "equal"
CARRIED = ("op", "families", "why")
VERSIONS = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
LIMIT_S = 300
# On CUDA all pieces of a graph are recorded by then; on the simulated device one call records, others replay.
CALLS = {"cpu": 1, "cuda": 16, "npu": 3}
# Kernels of a GPU add in another order than eager's; those of the simulated device are the CPU's.
ON_HOST = {"rtol": 1e-4, "atol": 1e-5}
TOLERANCE = {"cpu": ON_HOST, "cuda": {"rtol": 1e-3, "atol": 1e-4}, "npu": ON_HOST}


@dataclass
class Result:
    """What became of one family. A mode's entry is `equal`, or what went wrong in one line."""

    family: str
    unfit: str = ""
    inputs: list[str] = field(default_factory=list[str])
    parameters: int = 0
    modes: dict[str, str] = field(default_factory=dict[str, str])
    aot_eager: str = ""
    """How stock torch fares, asked only where a mode is not equal."""
    graphs: int = 0
    ops: int = 0
    breaks: list[str] = field(default_factory=list[str])
    fallbacks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    seconds: float = 0.0
    versions: str = VERSIONS
    launches: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    """On CUDA, of a call in the middle of a mode's life: replays, kernels, kernels inside replays."""
    told: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """What a mode said was less than promised."""

    @property
    def is_good(self) -> bool:
        """Equal to eager in both modes, or no worse than stock torch."""
        if self.unfit:
            return False
        return all(said == EQUAL for said in self.modes.values()) or self.aot_eager not in ("", EQUAL)


class OutOfTime(BaseException):
    """The family's time is up. No `Exception`: nobody on the way may swallow it."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `OutOfTime` in the body after so many seconds."""

    def ring(*_: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class How:
    """What a family is run with. The code generator `eager` needs no compiler."""

    modes: tuple[str, ...] = MODES
    codegen: str = "eager"
    dynamic: bool | None = None
    device: str = "cpu"


PLAIN = How()


def backend(mode: str, codegen: str = "eager") -> Callable[..., Any]:
    """Ours in one mode."""
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = codegen
    return torchair.get_npu_backend(compiler_config=config)


def compare(
    found: Tiny,
    wanted: list[torch.Tensor],
    with_backend: Any,
    dynamic: bool | None = None,
    then: Callable[[Callable[[], Any]], None] = lambda call: None,
    calls: int = 0,
) -> str:
    """`equal`, or why not; on a device also of replays. `then` may look at calls that are warm; how many
    come before them depends on the device, if not given.
    """
    torch.compiler.reset()
    device = next(found.model.parameters()).device.type
    try:
        run = torch.compile(found.model, backend=with_backend, dynamic=dynamic)
        with torch.no_grad():
            for _ in range(calls or CALLS[device]):
                torch.manual_seed(2)
                check_close(leaves(run(**found.inputs)), wanted, device)
            then(lambda: run(**found.inputs))
    except AssertionError as error:
        return f"unequal: {first_line(error)}"
    except Exception as error:
        return f"error: {first_line(error)}"
    finally:
        torch.compiler.reset()
    return EQUAL


def check_close(got: list[torch.Tensor], wanted: list[torch.Tensor], device: str) -> None:
    """The same tensors; where the wanted ones are those of the host, all of the others are on the device."""
    if wanted[0].device.type != device:
        assert {leaf.device.type for leaf in got} == {device}, "a result is on another device"
        got = [leaf.cpu() for leaf in got]
    torch.testing.assert_close(got, wanted, equal_nan=True, **TOLERANCE[device])


def run_family(family: str, limit_s: int = LIMIT_S, how: How = PLAIN) -> Result:
    """Eager, the modes and `explain` for one family."""
    result, began = Result(family), time.perf_counter()
    try:
        with time_limit(limit_s):
            _fill(result, how)
    except Unfit as error:
        result.unfit = str(error)
    except OutOfTime:
        late = next((mode for mode in how.modes if mode not in result.modes), "explain")
        result.modes[late] = f"error: not done after {limit_s} s"
    result.seconds = round(time.perf_counter() - began, 1)
    return result


def _fill(result: Result, how: How) -> None:
    found = on(tiny(result.family), how.device)
    result.inputs = list(found.inputs)
    result.parameters = sum(parameter.numel() for parameter in found.model.parameters())
    wanted = eager(found)
    for mode in how.modes:

        def count(call: Callable[[], Any], mode: str = mode) -> None:
            if how.device != "cpu":
                seen = launches(call)
                result.launches[mode] = (seen.replays, seen.kernels, seen.inside)

        logger.forget()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", torchair.DegradedWarning)
            made = backend(mode, how.codegen)
            result.modes[mode] = compare(found, wanted, made, how.dynamic, count)
        texts = [str(one.message) for one in said if one.category is torchair.DegradedWarning]
        result.told[mode] = texts
    if any(said != EQUAL for said in result.modes.values()):
        result.aot_eager = compare(found, wanted, "aot_eager", how.dynamic)
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        try:
            facts = torchair.explain(found.model, **found.inputs)
        except Exception as error:
            result.modes["explain"] = f"error: {first_line(error)}"
            return
    result.graphs, result.ops = len(facts.graphs), sum(graph.ge_ops for graph in facts.graphs)
    result.breaks = [
        f"{one.reason.strip().splitlines()[0]} ({_place(one.source)})" for one in facts.graph_breaks
    ]
    result.fallbacks = [(reason.op, reason.why) for reason in facts.fallbacks]


def on(found: Tiny, device: str) -> Tiny:
    """The model and its inputs on a device."""
    if device == "cpu":
        return found
    pairs = found.inputs.items()
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in pairs}
    return Tiny(found.family, found.model.to(device), moved)


def eager(found: Tiny) -> list[torch.Tensor]:
    """Eager's tensors; the same ones twice, or nothing can be equal to them."""
    runs = []
    for _ in range(2):
        torch.manual_seed(2)
        with torch.no_grad():
            runs.append(leaves(found.model(**found.inputs)))
    if not runs[0]:
        raise Unfit("the result holds no tensor")
    try:
        torch.testing.assert_close(*runs, equal_nan=True, **TOLERANCE[runs[0][0].device.type])
    except AssertionError as error:
        raise Unfit(f"eager differs from call to call: {first_line(error)}") from error
    if not any(torch.isfinite(leaf).all() for leaf in runs[0] if leaf.is_floating_point()):
        raise Unfit("eager gives no finite numbers")
    return runs[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models.sweep", description=__doc__)
    parser.add_argument("--family", action="append", help="only these")
    parser.add_argument("--shard", default="1/1", help="every n-th family, starting with the i-th: i/n")
    parser.add_argument("--json", type=Path, help="keep the results here, one line each")
    parser.add_argument("--read", type=Path, nargs="*", help="take results from these files, run nothing")
    parser.add_argument("--write", type=Path, help="write the table here")
    parser.add_argument("--mode", nargs="+", default=MODES, choices=MODES, help="only these modes")
    parser.add_argument("--codegen", default="eager", help="who generates the code")
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols from the first call on")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="seconds per family")
    options = parser.parse_args()
    results = read(options.read) if options.read else sweep(options)
    if options.write:
        text = launches_page(results) if options.device == "cuda" else page(results)
        options.write.write_text(text, encoding="utf-8")
    print(summary(results))


def sweep(options: argparse.Namespace) -> list[Result]:
    """Run what the command line names, a line each."""
    transformers.logging.set_verbosity_error()
    index, count = (int(part) for part in options.shard.split("/"))
    how = How(tuple(options.mode), options.codegen, options.dynamic or None, options.device)
    if options.device == "cuda":
        # Convolutions too: TF32 keeps ten bits, and eager and compiled round differently.
        torch.backends.cudnn.allow_tf32 = False
    # Inductor draws numbers of its own, unless asked for eager's.
    inductor_config.fallback_random = True
    results = []
    for family in (options.family or FAMILIES)[index - 1 :: count]:
        result = run_family(family, options.limit, how)
        results.append(result)
        wrong = {mode: said for mode, said in result.modes.items() if said != EQUAL}
        print(f"{family}: {result.unfit or wrong or EQUAL}, {result.seconds:.1f} s", flush=True)
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    return results


def read(paths: list[Path]) -> list[Result]:
    """Kept results; the last one of a family counts."""
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    found = {result.family: result for result in (Result(**json.loads(line)) for line in lines)}
    return [found[family] for family in sorted(found)]


def fallbacks(results: list[Result]) -> list[tuple[str, int, str]]:
    """Fall-backs by how many families have them: op, families, reason."""
    families = Counter(
        (op, why) for result in results for op, why in {tuple(pair) for pair in result.fallbacks}
    )
    return [(op, count, why) for (op, why), count in families.most_common()]


def summary(results: list[Result]) -> str:
    fit = [result for result in results if not result.unfit]
    good = [result for result in fit if result.is_good]
    modes = " and ".join(sorted({mode for result in fit for mode in result.modes})) or "no mode"
    lines = [f"{len(fit)} families run eagerly, {len(good)} of them as they should in {modes}"]
    lines += text_lines(CARRIED, fallbacks(results)[:20])
    return "\n".join(lines)


def page(results: list[Result]) -> str:
    """The reference page."""
    fit = [result for result in results if not result.unfit]
    equal = sum(all(said == EQUAL for said in result.modes.values()) for result in fit)
    lines = [
        "# Models",
        "",
        "Written by `python -m tests.models.sweep --write docs/reference/models.md`: tiny random models of",
        f"{len(fit)} `transformers` families on the CPU ({'; '.join(sorted({r.versions for r in fit}))}).",
        f"{equal} of them are equal to eager in both modes; of the others the cell says what happens, "
        'and what happens with `backend="aot_eager"`.',
        "Graphs and breaks are Dynamo's; a fall-back is an op that graph mode carries through as it is.",
        "",
    ]
    columns = ("family", "graph mode", "capture mode", "graphs", "breaks", "IR ops", "fall-backs")
    lines += markdown_lines(columns, [_facts(result) for result in fit])
    carried = [(f"`{op}`", count, why) for op, count, why in fallbacks(fit)]
    lines += ["", "## Fall-backs", "", *(markdown_lines(CARRIED, carried) if carried else ["None."])]
    return "\n".join(lines) + "\n"


def _facts(result: Result) -> tuple[Any, ...]:
    said = [_cell(result.modes.get(mode, ""), result.aot_eager) for mode in MODES]
    carried = ", ".join(f"`{op}`" for op in sorted({op for op, _ in result.fallbacks}))
    return (result.family, *said, result.graphs, len(result.breaks), result.ops, carried)


def launches_page(results: list[Result]) -> str:
    """The reference page of a sweep on CUDA."""
    fit = [result for result in results if not result.unfit]
    equal = sum(all(said == EQUAL for said in result.modes.values()) for result in fit)
    lines = [
        "# Models on CUDA",
        "",
        "Written by `python -m tests.models.sweep --device cuda --codegen auto --write …`: tiny random",
        f"models of {len(fit)} `transformers` families, TF32 off",
        f"({'; '.join(sorted({r.versions for r in fit}))}).",
        f"{equal} of them are equal to eager in both modes. Launches are replays in a warm call;",
        "the share is that of the call's kernels that run inside them. What splits a graph, keeps it from",
        "being recorded, or ends it (Dynamo's graph breaks: each graph is launched on its own) is named.",
        "",
    ]
    columns = ("family", "graph mode", "launches", "share", "capture mode", "launches", "share", "said")
    lines += markdown_lines(columns, [_launch_facts(result) for result in fit])
    return "\n".join(lines) + "\n"


def _launch_facts(result: Result) -> list[Any]:
    cells: list[Any] = [result.family]
    for mode in MODES:
        replays, kernels, inside = result.launches.get(mode, (0, 0, 0))
        share = f"{inside / kernels:.0%}" if kernels else "-"
        cells += [_cell(result.modes.get(mode, ""), result.aot_eager), replays, share]
    texts = [text for said in result.told.values() for text in said]
    texts += [f"graph break: {text}" for text in result.breaks]
    return [*cells, "; ".join(dict.fromkeys(texts))]


def _place(source: str) -> str:
    """A line of code by its file's name: where the file is differs from machine to machine."""
    place, _, code = source.partition(" ")
    return f"{Path(place).name} {code}"


def _cell(said: str, stock: str) -> str:
    return said if said == EQUAL else f"{said} (`aot_eager`: {stock})"


if __name__ == "__main__":
    main()
