"""Hold the sets of pattern replacements: users add with `register_replacement`, the pass applies all of a
set.

There are two sets: one for compiles with a `torchair.CompilerConfig`, one for the package `npugraph_ex`. The
built-in rules are in both.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import fx

from torchair.configs.npugraph_ex import CompilerConfig as CaptureConfig
from torchair.core.errors import BadPass
from torchair.core.registries.user_registrations import extend
from torchair.core.torch_private.compilers.pattern_matcher import (
    exact_pattern,
    fwd_only,
    is_fwd_only,
    pattern_pass,
    register_pattern,
)
from torchair.core.torch_private.fake.fake_tensors import disable_modes
from torchair.core.torch_private.fake.tracing import as_in_a_compile
from torchair.ops.streams.scope_analysis import annotate
from torchair.passes.pass_manager import PassContext
from torchair.passes.patterns.match.outcome import (
    Outcome,
    has_reason_readers,
    log_unfired,
    outcomes_of,
    why_off,
)
from torchair.passes.patterns.match.rule import MatchAttempt, MatchAttempts, Rule, as_written
from torchair.passes.patterns.match.variants import (
    Variant,
    check_replacement,
    check_results,
    variants_of,
    ways_of,
)
from torchair.passes.patterns.match.wildcards import disambiguate, has_wildcards
from torchair.passes.patterns.sets.builtin import Rule as Builtin
from torchair.passes.patterns.sets.builtin import anchors, rules
from torchair.passes.patterns.spec.explicit_pattern import check_explicit
from torchair.passes.patterns.spec.pattern_hash import PatternHash
from torchair.passes.patterns.spec.pattern_text import text_of
from torchair.passes.patterns.spec.subgraphs import branches_of
from torchair.passes.patterns.spec.user_pattern import UserPattern, check_callables, check_flag, given

# The key in a graph module's `meta` under which a match finds the running pass.
_IN_PROGRESS = "torchair_patterns_under_way"
_lock = threading.RLock()


def always(match: Any) -> bool:
    """Accept every match."""
    return True


class MatchInProgress:
    """Track the pass over one graph and its branches: the outcome of each rule so far."""

    def __init__(self, gm: fx.GraphModule, ctx: PassContext) -> None:
        self._gm = gm
        self.ctx = ctx
        self.tries: dict[Rule, MatchAttempts] = {}

    def try_match(self, rule: Rule, trial: MatchAttempt, check: Callable[[Any], bool], match: Any) -> bool:
        """Return whether the match shall be replaced."""
        tries = self.tries.setdefault(rule, MatchAttempts())
        node, before = match.output_nodes()[0], tries.found
        # In either mode, the results of a branch must have the layout that the surrounding graph expects.
        is_seen = self.ctx.switches.get("captures", False) or match.graph.owning_module is not self._gm
        why = trial.why_not(match, tries, check, captures=is_seen)
        if tries.found > before:
            self.ctx.tally(rule.name, matches=1, effects=int(why is None))
        if why is not None:
            tries.refused[node] = why
            return False
        tries.refused.pop(node, None)
        tries.fired += 1
        return True


class RuleSet:
    """Hold replacements, and torch's matcher for them, created on first use: loading it takes most of a
    second.
    """

    def __init__(self, name: str, door: str) -> None:
        self.name = name
        self.door = door  # the function with which users register
        self.of_users: list[Rule] = []
        self._known: dict[str, str] = {}  # the text of a pattern -> the rule that registered it
        self._builtin: set[str] = set()  # anchors
        self._matcher: Any = None

    @property
    def takes_numbers(self) -> bool:
        """Return whether a user rule has a wildcard number."""
        return any(rule.scalars for rule in self.of_users)

    def register(
        self,
        search_fn: Callable[..., Any],
        replace_fn: Callable[..., Any],
        example_inputs: Any,
        trace_fn: Callable[..., Any],
        extra_check: Callable[[Any], bool],
        search_fn_pattern: Any,
        scalar_workaround: Mapping[str, float] | None,
        skip_duplicates: bool,
    ) -> None:
        """Register a user's rule in all its forms."""
        check_callables(search_fn, replace_fn, trace_fn, extra_check, search_fn_pattern)
        check_flag("skip_duplicates", skip_duplicates)
        wanted = given(search_fn, replace_fn, example_inputs, scalar_workaround)
        with as_in_a_compile(), _lock:
            way = ways_of(trace_fn, is_fwd_only(trace_fn))[-1]
            if search_fn_pattern is None:
                wanted = disambiguate(wanted, way)
            else:
                check_explicit(wanted, search_fn_pattern)
                check_replacement(wanted, way, wanted.inputs)
            rule = Rule(
                wanted.name,
                wanted.find,
                _of_user(wanted.put, replace_fn),
                functools.partial(_why_not, wanted.name, _of_user(extra_check, extra_check)),
                dict(wanted.scalars),
                wanted.names,
                wanted.kinds,
                search_fn_pattern,
                at=_where(search_fn),
            )
            forms = _forms(wanted, trace_fn) if search_fn_pattern is None else []
            if forms:
                check_results(wanted, forms[0])
            if self._is_known(rule, forms, skip_duplicates):
                return
            self._add_forms(rule, forms, wanted.inputs, trace_fn)
            key = f"pattern {self.name} {len(self.of_users)} {rule.name}"
            self.of_users.append(rule)
        scalars = sorted(wanted.scalars.items())
        extend(
            key, [PatternHash(search_fn, replace_fn, extra_check, trace_fn), str(rule.patterns), str(scalars)]
        )

    def _is_known(self, rule: Rule, forms: list[Variant], may_skip: bool) -> bool:
        text = _text(rule, forms[0] if forms else None)
        other = self._known.get(text)
        if other is None or may_skip:
            return other is not None
        raise BadPass(
            f"the pattern {rule.name} is already registered by {other}",
            next="register it only once, or with skip_duplicates=True",
        )

    def _add_forms(self, rule: Rule, forms: list[Variant], inputs: Any, trace_fn: Any) -> None:
        if rule.pattern is not None:
            trace = as_written if is_fwd_only(trace_fn) else trace_fn
            self._add(rule, list(inputs), MatchAttempt(rule, trace), _text(rule))
        for form in forms:
            text = _text(rule, form)
            if text not in self._known:
                self._add(rule, form.inputs, MatchAttempt(rule, form.trace, form.gm), text)

    def _add(self, rule: Rule, inputs: list[Any], trial: MatchAttempt, text: str = "") -> None:
        # A running compile has its own fake mode, and tensors of two fake modes cannot be mixed.
        with disable_modes():
            entry = register_pattern(
                self.matcher,
                rule.find,
                rule.put,
                inputs,
                trial.trace,
                trial.check,
                rule.pattern,
                rule.scalars,
            )
        rule.patterns.append(entry.pattern)
        check = entry.extra_check

        def run(match: Any) -> bool:
            in_progress: MatchInProgress = match.graph.owning_module.meta[_IN_PROGRESS]
            return in_progress.try_match(rule, trial, check, match)

        entry.extra_check = run
        if text:
            self._known[text] = f"{rule.name} ({rule.at})" if rule.at else rule.name

    @property
    def matcher(self) -> Any:
        """Return torch's matcher with all rules."""
        if self._matcher is None:
            self._matcher = pattern_pass("npugraph_ex_generic_pattern_pass")
        return self._matcher

    def add_builtin(self, graph: fx.Graph) -> None:
        """Add the built-in rules when a graph has an op that they start from.

        Tracing them takes time, and all op libraries are loaded by then.
        """
        for anchor in (anchors() & {str(node.target) for node in graph.nodes}) - self._builtin:
            self._builtin.add(anchor)
            for each in rules():
                if each.anchor == anchor and each.is_defined():
                    self._add_one_of_ours(each)

    def _add_one_of_ours(self, ours: Builtin) -> None:
        find, put = ours.functions()
        why_not = functools.partial(_why_not_ours, ours)
        rule = Rule(ours.name, find, put, why_not, dict(ours.scalars), is_of_user=False)
        with disable_modes():
            inputs = ours.inputs()
        self._add(rule, inputs, MatchAttempt(rule, as_written))

    def apply(self, gm: fx.GraphModule, ctx: PassContext) -> int:
        """Apply all rules in registration order to all nodes, last node first, in branches too."""
        modules = [gm, *branches_of(gm)]
        with _lock:
            for each in modules:
                self.add_builtin(each.graph)
            if self._matcher is None:
                return 0
            before = {node for each in modules for node in each.graph.nodes}
            in_progress = MatchInProgress(gm, ctx)
            changed = sum(self._apply_to(each, in_progress) for each in modules)
            if self.of_users and has_reason_readers(ctx):
                tried = [(rule, in_progress.tries.get(rule, MatchAttempts())) for rule in self.of_users]
                graphs = [each.graph for each in modules]
                ctx.rules += outcomes_of(tried, graphs, before, ctx, apply_pattern_passes.__name__)
                log_unfired(ctx.rules, ctx)
        return changed

    def _apply_to(self, gm: fx.GraphModule, in_progress: MatchInProgress) -> int:
        annotate(gm.graph)
        gm.meta[_IN_PROGRESS] = in_progress
        try:
            changed: int = self._matcher.apply(gm.graph)
        finally:
            del gm.meta[_IN_PROGRESS]
        if changed:
            gm.graph.lint()
            gm.recompile()
        return changed


def _forms(wanted: UserPattern, trace_fn: Any) -> list[Variant]:
    """Return the forms in which each number occurs: where a number has no effect, its op may be omitted."""
    forms = variants_of(wanted, trace_fn, is_fwd_only(trace_fn))
    return [form for form in forms if has_wildcards(wanted, form.gm)]


def _text(rule: Rule, form: Variant | None = None) -> str:
    """Return the text of a pattern; patterns with equal texts find the same."""
    pattern = rule.pattern if form is None else exact_pattern(form.gm, rule.scalars)
    return text_of(pattern, rule.scalars)


def _why_not(name: str, check: Callable[[Any], bool], match: Any) -> str | None:
    return _off(name, match) or (None if check(match) else "extra_check returned False")


def _why_not_ours(ours: Builtin, match: Any) -> str | None:
    return _off(ours.name, match) or ours.why_not(match)


def _off(name: str, match: Any) -> str | None:
    in_progress: MatchInProgress = match.graph.owning_module.meta[_IN_PROGRESS]
    return why_off(name, apply_pattern_passes.__name__, in_progress.ctx.named)


def _of_user(call: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a user's function so that its errors are raised to the user."""

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            name = getattr(function, "__qualname__", repr(function))
            what = f"the function {name} of a replacement raised {type(error).__name__}: {error}"
            raise BadPass(what).of_user() from error

    return run


def _where(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code is not None else ""


OF_TORCHAIR = RuleSet("torchair", "torchair.register_replacement")
OF_CAPTURE = RuleSet("npugraph_ex", "npugraph_ex.register_replacement")


def register_replacement(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Iterable[Any],
    trace_fn: Callable[..., Any] = fwd_only,
    extra_check: Callable[[Any], bool] = always,
    search_fn_pattern: Any = None,
    scalar_workaround: Mapping[str, float | int] | None = None,
    skip_duplicates: bool = False,
) -> None:
    """Replace what `search_fn` traces to by what `replace_fn` traces to in every graph compiled from now on.

    This applies to compiles with a `torchair.CompilerConfig`; `torchair.npugraph_ex.register_replacement` is
    for the package `npugraph_ex`. `ge_config.optimization_switch` switches the replacement by the name of
    `search_fn`.

    Args:
        search_fn: Function whose traced calls are searched for.
        replace_fn: Function with the same parameters whose traced calls replace them.
        example_inputs: Sample (fake) tensors and numbers to trace with, one per parameter.
        trace_fn: Tracer for both functions.
        extra_check: Called with each match; return False to reject the match.
        search_fn_pattern: Explicit pattern of torch's pattern matcher, used instead of tracing `search_fn`.
        scalar_workaround: Example numbers for parameters that match any number.
        skip_duplicates: Ignore a pattern that is already registered, instead of raising.

    Raises:
        BadPass: The pattern cannot be traced, does not match its replacement, or is already registered.
        BadOptionType: An argument has the wrong type.

    Example:
        torchair.register_replacement(
            lambda x, y: torch.exp(x + y),
            lambda x, y: torch.ops.mylib.add_exp(x, y),
            (torch.empty(2, 8), torch.empty(2, 8)),
        )
    """
    OF_TORCHAIR.register(
        search_fn, replace_fn, example_inputs, trace_fn, extra_check, search_fn_pattern, scalar_workaround,
        skip_duplicates,
    )  # fmt: skip


def rule_names() -> list[str]:
    """Return the names of all replacements, built-in and user-defined."""
    of_users = {rule.name for each in (OF_TORCHAIR, OF_CAPTURE) for rule in each.of_users}
    return [*(rule.name for rule in rules()), *sorted(of_users)]


def set_of(config: Any) -> RuleSet:
    """Return the rules of a compile with this configuration."""
    return OF_CAPTURE if isinstance(config, CaptureConfig) else OF_TORCHAIR


def apply_pattern_passes(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Apply all replacements, built-in ones first, widest first as they were registered."""
    return set_of(ctx.config).apply(gm, ctx)


def untried(config: Any, why: str) -> list[Outcome]:
    """Return the user rules of this configuration, none of which was tried, for the reason `why`."""
    return [Outcome(rule.name, rule.at, 0, why) for rule in set_of(config).of_users]


def of_the_other(config: Any) -> list[Outcome]:
    """Return the user rules that this configuration does not have; some are registered in both sets."""
    own = set_of(config)
    known = {(rule.name, rule.at) for rule in own.of_users}
    other = OF_TORCHAIR if own is OF_CAPTURE else OF_CAPTURE
    why = f"registered with {other.door}, but this configuration uses the rules of {own.door}"
    missing = [rule for rule in other.of_users if (rule.name, rule.at) not in known]
    return [Outcome(rule.name, rule.at, 0, why) for rule in missing]
