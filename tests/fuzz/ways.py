"""Ways to compile a random program that leave its results as they are: scopes, gears, replacements, and
forward and backward as one graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

import torch

import torchair
from tests.fuzz.oracle import Failure, Seen, backend_of, compare, facts, raised
from tests.fuzz.programs import MODES, Program, any_program, loss
from tests.fuzz.simulated import AnyLayout
from torchair.devices import get_device, installed
from torchair.passes.patterns.sets import registry

SCOPES = (
    'npu_stream_switch("a")', 'npu_stream_switch("b", 1)', "limit_core_num(2, 4)", 'super_kernel("s")',
    "op_never_timeout()", "",
)  # fmt: skip
Step = Callable[..., Any]


def scoped(random: Random, program: Program) -> Program:
    """Put lines of a program into scopes."""
    lines = tuple(replace(line, scope=random.choice(SCOPES)) for line in program.lines)
    return replace(program, lines=lines)


def geared(program: Program) -> Program:
    """Give the first dim of the first input that varies, or may vary, its sizes as gears."""
    first = program.feeds[0]
    for dim, size in enumerate(first.views[0].size):
        if size > 1:
            sizes = {feed.views[0].size[dim] for feed in program.feeds} | {size, size + 1}
            view = replace(first.views[0], gears=(dim, tuple(sorted(sizes))))
            feed = replace(first, views=(view, *first.views[1:]))
            return replace(program, feeds=(feed, *program.feeds[1:]))
    return program


# Replacements that compute the same, to the last sign of a zero.


def difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x - y


def sum_of_negative(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + -y


def square(x: torch.Tensor) -> torch.Tensor:
    return x.pow(2)


def product(x: torch.Tensor) -> torch.Tensor:
    return x * x


def exponential(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def product_of_halves(x: torch.Tensor) -> torch.Tensor:
    half = (x * 0.5).exp()
    return half * half


RULES = ((difference, sum_of_negative, 2), (square, product, 1), (exponential, product_of_halves, 1))


@contextmanager
def replaced() -> Iterator[list[str]]:
    """Register these replacements alone, and note the places where they were applied."""
    found: list[str] = []

    def is_float(match: Any) -> bool:
        values = [node.meta["val"] for node in match.kwargs.values()]
        is_float = all(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
        found.extend([str(match.output_node())] * is_float)
        return is_float

    with mock.patch.object(
        registry, "OF_TORCHAIR", registry.RuleSet("torchair", "torchair.register_replacement")
    ):
        for search, put, count in RULES:
            torchair.register_replacement(
                search, put, [torch.randn(3) for _ in range(count)], extra_check=is_float
            )
        yield found


# Forward and backward as one graph.


def with_loss(program: Program) -> Step:
    """Return the function that returns its loss first."""
    function = program.function()

    def step(*args: torch.Tensor) -> list[Any]:
        outputs = function(*args)
        return [loss(outputs), *outputs]

    return step


def steps(run: Step, program: Program, differentiates: bool) -> list[Seen]:
    """Make the calls, and note results, storages and gradients."""
    found: list[Seen] = []
    for feed in program.feeds:
        names = feed.build("cpu")
        outputs = run(*(names[name] for name in program.inputs))
        if differentiates:
            outputs[0].backward()
        seen = Seen({f"output {i}": facts(output.detach()) for i, output in enumerate(outputs)})
        for name, value in names.items():
            if name[0] == "b":
                seen.tensors[f"storage {name}"] = facts(value.detach())
            elif isinstance(value, torch.Tensor) and value.is_leaf and value.grad is not None:
                seen.tensors[f"gradient {name}"] = facts(value.grad)
        found.append(seen)
    return found


def has_joint_graph(program: Program) -> bool:
    """Is there a loss, and does it depend on leaves alone?"""
    if any(buffer.grad for feed in program.feeds for buffer in feed.buffers):
        return False
    try:
        steps(with_loss(program), program, differentiates=True)
    except (RuntimeError, AttributeError):
        return False
    return True


def joint_failure(program: Program) -> Failure | None:
    """Compare a training step as one graph with eager; None also where `aot_eager` differs, too."""
    backend = backend_of(program, "eager", aot_config_enable_joint_graph=True, aot_config_output_loss_index=0)
    want = steps(with_loss(program), program, differentiates=True)

    def attempt(backend: Any, differentiates: bool) -> Failure | None:
        torch.compiler.reset()
        run = torch.compile(with_loss(program), backend=backend, dynamic=program.dynamic)
        try:
            return compare(want, steps(run, program, differentiates))
        except Exception as error:
            return raised(error)

    row = AnyLayout() if program.simulated else get_device(torch.device("cpu"))
    with installed(row), warnings.catch_warnings():
        warnings.simplefilter("ignore", torchair.DegradedWarning)
        failure = attempt(backend, differentiates=False)
    return None if failure is None or attempt("aot_eager", differentiates=True) else failure


def any_way(random: Random, way: str) -> Program | None:
    """Make a program for one of these ways; None where this one has none."""
    if way == "gears":
        program = geared(any_program(random, MODES[0], True))
        return program if program.feeds[0].views[0].gears else None
    program = replace(any_program(random), careless=False)
    if way == "joint":
        return program if has_joint_graph(program) else None
    return scoped(random, program) if way == "scopes" else program
