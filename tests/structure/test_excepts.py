"""A broad `except` hides faults: each raises, or tells what is lost, or is listed here with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.structure.tree import modules, parse

# Module and function -> who learns of the error.
KEPT = {
    "torchair.backend.diagnose.converter_cases.why_fails": "it is the answer of the case",
    "torchair.__main__.main": "it is printed, and the exit status is 2",
    "torchair.cli.sim._run": "it is the error of the script, shown as Python shows it",
    "torchair.compare.compare._write_script": "a note of the comparison says so",
    "torchair.compare.locate.locate_converter.wrong_calls": "it is the culprit's `why`",
    "torchair.compare.locate.converter_or_kernel._emits": (
        "a case that cannot run proves nothing; the self-test reports it"
    ),
    "torchair.compare.base.check_replay.ReplayChecker.call": "it is the culprit's `why`",
    "torchair.compare.base.replay_call.RecordedCall.run": "it is the outcome, which is shown",
    "torchair.compare.stage_comparison.searched": "it is the culprit's `why`",
    "torchair.compare.repro_script._shows": (
        "a part that does not compile shows nothing; a larger one is tried"
    ),
    "torchair.backend.cache.compiled_method.CachedMethod._woken": "`_unreadable` tells it",
    "torchair.backend.cache.compiled_method.CachedMethod.take": "`_unreadable` tells it",
    "torchair.core.torch_private.dynamo.assumed_constants.Assumed.why_other": "it is the reason of a miss",
    "torchair.core.torch_private.dynamo.guards.GuardRecord.why_other": "it is the reason of a miss",
    "torchair.backend.service.scheduler.CompileScheduler._tell": "the user's function failed; the log has it",
    "torchair.capture.base.pending_program.PendingProgram.tell": "the log has it: builds go on",
    "torchair.backend.service.scheduler.CompileScheduler._next": "`take` tells it",
    "torchair.backend.service.scheduler.Job._load_cached": "the log has it, and it is compiled again",
    "torchair.backend.service.scheduler.Job.run": "`take` tells it",
    "torchair.backend.service.request.CompileRequest.fill": "it is the reason, if nothing can compile it",
    "torchair.backend.pipeline.autotune._built": "it is in the result, and a warning if no way is left",
    "torchair.backend.pipeline.autotune.AutotunedProgram._try": (
        "it is in the result, and a warning if no way is left"
    ),
    "torchair.devices.cuda.Cuda.call_on_host.on_host": "the next replay raises it",
    "torchair.capture.strategies.recorder.Recorder.record": "`Replay._fail` warns, after a direct run",
    "torchair.backend.library.opcheck._Check._checked": "the report names the difference",
    "torchair.backend.library.opcheck._Check._with_other_sizes": (
        "other sizes are refused; the report notes it"
    ),
    "torchair.convert.base.inference_rule.attach_rules": "a warning in the log: the engine must know the op",
    "torchair.convert.convert._try": "it is the reason of the fall-back, which is told",
    "torchair.convert.convert._decompose": "it is the reason of the fall-back, which is told",
    "torchair.core.native.fast_replay.load_async": "Python does the same",
    "torchair.passes.patterns.match.variants.check_replacement": (
        "the log has it; each match is checked again"
    ),
    "torchair.sim.native.shim": "installing the device tells it, and Python does what it can",
    "torchair.core.native.fast_replay._build_and_load": "Python does the same",
}


def broad(tree: ast.Module) -> Iterator[tuple[str, ast.ExceptHandler]]:
    """Handlers of everything, by the function they are in."""

    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, ast.ExceptHandler]]:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}" if name else child.name
            if isinstance(child, ast.ExceptHandler) and _is_broad(child):
                yield name, child
            yield from walk(child, inner)

    return walk(tree, "")


def _is_broad(handler: ast.ExceptHandler) -> bool:
    kind = handler.type
    return kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))


def _ends_in_raise(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def _tells(handler: ast.ExceptHandler) -> bool:
    calls = [node for node in ast.walk(handler) if isinstance(node, ast.Call)]
    told = ("degradations.add", "fallbacks.say")
    return any(ast.unparse(call.func).endswith(told) for call in calls)


def _asks_who_it_is_of(handler: ast.ExceptHandler) -> bool:
    """Raised again, unless somebody goes around it, who tells."""
    return "fallbacks.add" in ast.unparse(handler)


def test_broad_excepts_raise_or_tell() -> None:
    silent = {
        f"{module}.{name}"
        for module, path in modules().items()
        for name, handler in broad(parse(path))
        if not (_ends_in_raise(handler) or _tells(handler) or _asks_who_it_is_of(handler))
    }
    assert silent <= set(KEPT), f"broad, and nobody learns of it: {sorted(silent - set(KEPT))}"
    assert set(KEPT) <= silent, f"listed, and not there: {sorted(set(KEPT) - silent)}"
