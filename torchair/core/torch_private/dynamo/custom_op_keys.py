"""Keys of user-defined operators: the parts that affect compilation. These are the schema, the shape
function, and the definition. A kernel that is called at run time is not included, unless the operator was
defined with it.
"""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import builtins
import hashlib
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._library import simple_registry
from torch._library.custom_ops import OPDEFS

from torchair.core.errors import NotPossible
from torchair.core.fingerprint.python_objects import OWN, code_digest, codes_inside, identity
from torchair.core.torch_private.operators.schemas import OpOverload, OpOverloadPacket, find_overload

BUILT_IN = ("aten", "prims", "prim", "torchair", "npu", "profiler", "_c10d_functional", "c10d_functional")
"""Namespaces of operators that the versions of torch and of this package identify."""
_REGISTERED = re.compile(r"registered at (.+):\d+")
_TORCH = Path(torch.__file__).parent
FIELDS = ("_init_fn", "_abstract_fn", "_backend_fns", "_torch_dispatch_fns", "_tags")


def op_facts(targets: Iterable[Any]) -> dict[str, str]:
    """Return the keys of the user-defined operators among the targets.

    Raises:
        NotPossible: if a target is a Python function that Dynamo did not trace.
    """
    found = dict[str, str]()
    for target in targets:
        if isinstance(target, OpOverloadPacket):
            for name in target.overloads():
                _add(getattr(target, name), found)
        elif isinstance(target, OpOverload):
            _add(target, found)
        elif isinstance(target, types.FunctionType) and target.__module__.partition(".")[0] not in OWN:
            name = f"{target.__module__}.{target.__qualname__}"
            raise NotPossible(f"Dynamo does not trace {name}, so a change of it would not be noticed")
    return found


def targets_of(gm: torch.fx.GraphModule) -> Iterator[Any]:
    """Yield the targets of all calls in a graph and its subgraphs."""
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from (node.target for node in module.graph.nodes if node.op == "call_function")


def _add(op: OpOverload, found: dict[str, str]) -> None:
    if op.namespace not in BUILT_IN:
        name = f"{op.namespace}.{op._opname}.{op._overloadname}"
        found[name] = op_fact(op)


def why_other_ops(facts: Mapping[str, str]) -> str | None:
    """Return why this process has other operators, or None if they are the same."""
    for name, fact in facts.items():
        op = find_overload(name)
        if op is None:
            return f"the operator {name} is not registered"
        if op_fact(op) != fact:
            return f"the operator {name} has changed"
    return None


def op_fact(op: OpOverload) -> str:
    """Return a digest of everything that a trace sees of the operator."""
    name = op._schema.name
    rows = [str(op._schema), repr(sorted(map(str, op.tags)))]
    definition = OPDEFS.get(name)
    if definition is not None:
        rows += [f"{field} {_encode(getattr(definition, field, None))}" for field in FIELDS]
    fake = simple_registry.singleton.find(name).fake_impl.kernel
    rows.append(f"fake {_encode(getattr(fake, 'func', None))}")
    rows.append(f"decompositions {_encode(op.py_kernels)}")
    for path in sorted(set(_REGISTERED.findall(torch._C._dispatch_dump(name)))):
        file = Path(path)
        if file.is_file() and not file.is_relative_to(_TORCH):
            rows.append(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}")
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _encode(value: Any) -> str:
    """Return a text for a value. Functions are identified by their code and the code of functions they
    wrap.
    """
    if isinstance(value, types.FunctionType):
        return repr([code_digest(code) for code in codes_inside(value)])
    if isinstance(value, Mapping):
        return repr(sorted((str(key), _encode(item)) for key, item in value.items()))
    if isinstance(value, builtins.set | frozenset | tuple | list):
        return repr(sorted(map(str, value)))
    try:
        return repr(identity(value))
    except NotPossible:
        return type(value).__qualname__
