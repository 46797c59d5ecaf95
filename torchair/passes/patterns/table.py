"""The one set of pattern replacements: users add with `register_replacement`, the pass applies all of
them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from torchair.core.errors import BadPass
from torchair.core.extensions import extend
from torchair.core.torch_private.fake import disable_modes
from torchair.core.torch_private.inductor import fwd_only, is_fwd_only, pattern_pass, register_pattern
from torchair.passes.fx.scopes import PLACES, annotate
from torchair.passes.patterns.builtin import anchors, rules
from torchair.passes.run import PassContext

_of_users: set[str] = set()  # names of replacements
# The key in a graph module's `meta` under which the pass that is under way finds what it may ask.
_CONTEXT = "torchair_pass_context"


_made: list[Any] = []  # the matcher, once there is one
_making = threading.RLock()


def _matcher() -> Any:
    """All replacements. Inductor's matcher takes most of a second to load: not before there is one."""
    with _making:
        if not _made:
            _made.append(pattern_pass("npugraph_ex_generic_pattern_pass"))
        return _made[0]


def _undecomposed(fn: Callable[..., Any], args: Any, **options: Any) -> fx.GraphModule:
    """As `fwd_only`, but nothing is taken apart: our graphs are not either when the patterns run."""
    options["get_decomp_fn"] = dict
    return fwd_only(fn, args, **options)


def _as_written(fn: Callable[..., Any], args: Any, **options: Any) -> fx.GraphModule:
    """Views that change nothing stay too: a rule may be written for them."""
    options["run_functional_passes"] = False
    gm = _undecomposed(fn, args, **options)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _always(match: Any) -> bool:
    return True


def register_replacement(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Iterable[Any],
    trace_fn: Callable[..., Any] = fwd_only,
    extra_check: Callable[[Any], bool] = _always,
    search_fn_pattern: Any = None,
    scalar_workaround: Mapping[str, float | int] | None = None,
    skip_duplicates: bool = False,
) -> None:
    """Replace what `search_fn` traces to by what `replace_fn` traces to, in every graph compiled from now on.

    `example_inputs` are sample (fake) tensors for tracing; `extra_check(match)` has the last word on each
    match. `ge_config.optimization_switch` knows the replacement by the name of `search_fn`.
    """
    name = getattr(search_fn, "__name__", type(search_fn).__name__)
    _of_users.add(name)
    extend(f"pattern {name}", [search_fn, replace_fn, extra_check])
    _register(
        name,
        search_fn,
        _of_user(replace_fn),
        _each_its_own(example_inputs),
        _undecomposed if is_fwd_only(trace_fn) else trace_fn,
        _of_user(extra_check),
        search_fn_pattern=search_fn_pattern,
        scalar_workaround=dict(scalar_workaround) if scalar_workaround else None,
        skip_duplicates=skip_duplicates,
    )


def _each_its_own(inputs: Iterable[Any]) -> list[Any]:
    """One tensor given for two arguments would make a pattern in which both are the same."""
    made: list[Any] = []
    for value in inputs:
        is_taken = isinstance(value, torch.Tensor) and any(value is other for other in made)
        made.append(value.clone() if is_taken else value)
    return made


def _register(
    name: str, find: Any, put: Any, inputs: list[Any], trace: Any, check: Any, **options: Any
) -> None:
    wanted = _in_one_place(_switched(name, check))
    register_pattern(find, put, inputs, trace, _matcher(), extra_check=wanted, **options)


def rule_names() -> list[str]:
    """The names of all replacements, ours and the users'."""
    return [*(rule.name for rule in rules()), *sorted(_of_users)]


def _switched(name: str, check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """The check of a replacement that can be switched off by its name; matches and effects are counted."""

    def run(match: Any) -> bool:
        context: PassContext = match.graph.owning_module.meta[_CONTEXT]
        named, whole = context.named, apply_pattern_passes.__name__
        is_on = named.asked(name if name in named.named else whole, fusion=True) and check(match)
        context.tally(name, matches=1, effects=int(is_on))
        return is_on

    return run


def _of_user(function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's function, whose errors are the user's to see."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            name = getattr(function, "__qualname__", repr(function))
            what = f"the function {name} of a replacement raised {type(error).__name__}: {error}"
            raise BadPass(what).of_user() from error

    return run


def _in_one_place(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Nodes on different streams, in different scopes or on two sides of an event are never fused."""

    def run(match: Any) -> bool:
        calls = [node for node in match.nodes if node.op == "call_function"]
        places = {tuple(node.meta.get(key) for key in PLACES) for node in calls}
        return len(places) <= 1 and check(match)

    return run


@functools.cache
def register_builtin_rules(anchor: Any) -> int:
    """Our own rules that start from one op join the set when a graph has that op: tracing them takes time,
    and all op libraries are loaded by then.
    """
    defined = [rule for rule in rules() if rule.anchor is anchor and rule.is_defined()]
    # A compile under way has a fake mode of its own, and tensors of two fake modes do not mix.
    with disable_modes():
        for rule in defined:
            find, put = rule.functions()
            _register(
                rule.name,
                find,
                put,
                list(rule.inputs()),
                _as_written,
                lambda match, why_not=rule.why_not: why_not(match) is None,
                scalar_workaround=rule.scalars,
                skip_duplicates=True,
            )
    return len(defined)


def apply_pattern_passes(gm: fx.GraphModule, ctx: PassContext) -> int:
    """All replacements, ours first, widest first as they were registered."""
    with _making:
        for anchor in anchors() & {node.target for node in gm.graph.nodes}:
            register_builtin_rules(anchor)
    if not _made:
        return 0
    annotate(gm.graph)
    gm.meta[_CONTEXT] = ctx
    changed: int = _matcher().apply(gm.graph)
    del gm.meta[_CONTEXT]
    if changed:
        gm.graph.lint()
        gm.recompile()
    return changed
