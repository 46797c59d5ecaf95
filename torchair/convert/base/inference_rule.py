"""Write `_inference_rule`: the sizes and types of a user's IR op as functions of its inputs.

The rule is JSON for engines that do not know the op. The fake function of the torch op runs once more, with a
separate symbol for each size. Sizes of 0 and 1 stay numbers: they decide how operands are broadcast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from torchair.core import dtypes
from torchair.core.errors import first_line
from torchair.core.log import logger
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv, new_size
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.effects import flat
from torchair.fxgraph.symbols import hint, is_symbol
from torchair.ge.attr import Str
from torchair.ge.builder.torch_kernel_binding import HIDDEN
from torchair.ge.builder.torch_op import Symbol
from torchair.ge.graph import Op, Tensor
from torchair.ge.host import Host
from torchair.ge.prototype import catalogue

RULE = "_inference_rule"
_FUNCTIONS = {
    "FloorDiv": "Floor(Div({}, {}))",
    "CleanDiv": "Div({}, {})",
    "CeilDiv": "Ceil(Div({}, {}))",
    "Mod": "Mod({}, {})",
    "PythonMod": "Mod({}, {})",
    "IntTrueDiv": "Div({}, {})",
    "FloatTrueDiv": "Div({}, {})",
    "PowByNatural": "Pow({}, {})",
    "Pow": "Pow({}, {})",
    "floor": "Floor({})",
    "FloorToInt": "Floor({})",
    "ceiling": "Ceil({})",
    "CeilToInt": "Ceil({})",
    "ToFloat": "{}",
    "TruncToInt": "Floor({})",
}
"""Name of a size function in torch -> its form in the rule."""


def attach_rules(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any, ops: Sequence[Op]
) -> None:
    """Attach rules to the users' ops among those emitted for a call of the torch op.

    A rule that cannot be computed is a warning: the engine that runs the graph must then know the op.
    """
    own = [op for op in ops if op.outputs and not catalogue().is_builtin(op.type)]
    if not own or not isinstance(target, OpOverload):
        return
    try:
        fresh = _Fresh(ShapeEnv())
        results = fresh.run(target, args, kwargs)
        known = [(tensor, value) for tensor, value in zip(flat(made), results, strict=False)]
        values = {tensor: value for tensor, value in known if isinstance(tensor, Tensor)}
        for op in own:
            op.attrs[RULE] = Str(json.dumps(_rule(op, fresh, values)))
    except Exception as error:
        names = ", ".join(op.type for op in own)
        logger.warning(
            "%s has no rule for its sizes, so the engine must know the op: %s: %s",
            names,
            type(error).__name__,
            first_line(error),
        )


class _Fresh:
    """Create fake arguments, each size of which is a separate symbol."""

    def __init__(self, env: ShapeEnv) -> None:
        self._env, self._mode = env, FakeTensorMode(shape_env=env)
        # The fake argument for each tensor of the graph; and the names of symbols.
        self.values: dict[Tensor, Any] = {}
        self.names: dict[sympy.Symbol, str] = {}

    def run(self, target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the results of the call, as fake tensors."""
        given = [self._given(argument) for argument in args]
        named = {name: self._given(argument) for name, argument in kwargs.items()}
        with self._mode, torch.no_grad():
            return list(flat(target(*given, **named)))

    def _given(self, argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [self._given(item) for item in argument]
        if isinstance(argument, Symbol):
            return self._once(argument.tensor, self._number)
        return self._once(argument, self._tensor) if isinstance(argument, Tensor) else argument

    def _once(self, tensor: Tensor, make: Any) -> Any:
        if tensor not in self.values:
            self.values[tensor] = make(tensor)
        return self.values[tensor]

    def _number(self, tensor: Tensor) -> Any:
        meta = tensor.meta
        assert isinstance(meta, Host), "symbols are numbers"
        return self._size("v", hint(meta.value))

    def _tensor(self, tensor: Tensor) -> Any:
        meta = tensor.meta
        if isinstance(meta, Host):
            return self._number(tensor)
        if meta is None:
            raise NotImplementedError(f"the sizes of {tensor.tensor} are not known")
        sizes = [self._size("s", hint(size) if is_symbol(size) else size) for size in meta.shape]
        with self._mode:
            return torch.empty(sizes, dtype=meta.dtype, device=meta.device)

    def _size(self, prefix: str, example: int) -> Any:
        if prefix == "s" and example < 2:
            return example
        count = sum(name.startswith(prefix) for name in self.names.values())
        result = new_size(self._env, f"{prefix}{count}", example)
        self.names[result.node.expr] = f"{prefix}{count}"
        return result


def _rule(op: Op, fresh: _Fresh, results: Mapping[Tensor, Any]) -> dict[str, Any]:
    slots = [slot for slot in op.slots if not slot.name.startswith(HIDDEN)]
    by_name = {slot.name: slot.tensor for slot in slots}
    outputs: list[Any] = []
    for output in op.outputs:
        if output.desc.name.startswith(HIDDEN):
            continue
        # A tensor that the op writes keeps its size.
        found = results.get(output, fresh.values.get(by_name.get(output.desc.name)))  # type: ignore[arg-type]
        if not isinstance(found, torch.Tensor):
            raise NotImplementedError(f"nothing defines its output {output.desc.name!r}")
        outputs.append(found)
    sizes = [[_text(size, fresh.names) for size in value.shape] for value in outputs]
    used = {symbol for value in outputs for size in value.shape if is_symbol(size) for symbol in _free(size)}
    inputs: list[list[str] | None] = []
    for slot in slots:
        value = fresh.values.get(slot.tensor) if slot.tensor is not None else None
        numbers = () if value is None else value.shape if isinstance(value, torch.Tensor) else (value,)
        defines = {size.node._expr for size in numbers if is_symbol(size)}
        inputs.append([_name(size, fresh.names) for size in numbers] if defines & used else None)
        used -= defines
    if used:
        lacking = ", ".join(sorted(fresh.names.get(symbol, str(symbol)) for symbol in used))
        raise NotImplementedError(f"no input of the IR op determines {lacking}")
    types = [dtypes.to_ge(value.dtype) for value in outputs]
    return {"shape": {"inputs": inputs, "outputs": sizes}, "dtype": types}


def _free(size: Any) -> set[Any]:
    return set(size.node.expr.free_symbols)


def _name(size: Any, names: Mapping[Any, str]) -> str:
    """Return the original symbol of an input size, even if it was found equal to another."""
    return names[size.node._expr] if is_symbol(size) else str(size)


def _text(size: Any, names: Mapping[Any, str]) -> str:
    return _expression(size.node.expr, names) if is_symbol(size) else str(size)


def _expression(expr: Any, names: Mapping[Any, str]) -> str:
    """Return an expression such as `s0 + 2 * s1`, with the rule's names for functions."""
    if expr in names:
        return names[expr]
    if expr.is_Integer:
        return str(int(expr))
    if expr.is_Rational:
        return f"Div({expr.p}, {expr.q})"
    parts = [_expression(part, names) for part in expr.args]
    if expr.is_Add:
        return f"({' + '.join(parts)})".replace("+ -", "- ")
    if expr.is_Mul:
        return "-" + " * ".join(parts[1:]) if parts[0] == "-1" else " * ".join(parts)
    form = _FUNCTIONS.get(type(expr).__name__)
    if form is None or form.count("{}") != len(parts):
        raise NotImplementedError(f"its sizes need {type(expr).__name__}, which rules do not support")
    return form.format(*parts)
