"""One process of the table of changes: import the module of each row, change it, and call its method.

`python -m tests.inference.change_process FOLDER` reads `FOLDER/plan.json`: the directory of the cache, if the
method is compiled by `cache_compile` or by `torch.compile`, and the rows. It prints one JSON object: for each
row the result, the result of eager, and how the compiled one was made.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import torchair
from torchair.backend.dynamo import graph_cache
from torchair.core.errors import DegradedWarning, first_line

X = torch.arange(8.0).reshape(2, 4) / 8 + 1


class Compiles:
    """Count the graphs that `torch.compile` hands to the compiler and that no earlier process compiled."""

    def __init__(self) -> None:
        self.count = 0
        self._own = graph_cache.compile_dynamo
        graph_cache.compile_dynamo = self

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        return self._own(*args)


def config_of_row(row: dict[str, Any]) -> torchair.CompilerConfig:
    """The options of a row."""
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.engine_config.codegen = "eager"
    exec(row["options"], {"config": config, "torch": torch})
    return config


def flat(value: Any) -> list[Any]:
    """What can be written as JSON and compared: values, type and layout of each tensor."""
    leaves = torch.utils._pytree.tree_leaves(value)
    return [
        [str(x.dtype), list(x.shape), list(x.stride()), x.requires_grad, x.detach().double().tolist()]
        if isinstance(x, torch.Tensor)
        else [type(x).__name__, repr(x)]
        for x in leaves
    ]


def call_of_row(run: Any, row: dict[str, Any], scope: dict[str, Any]) -> list[Any]:
    """The result of a call, in the context of the row."""
    torch.manual_seed(0)
    with torch.no_grad(), contextlib.ExitStack() as stack:
        if row["context"]:
            stack.enter_context(eval(row["context"], scope))
        args, kwargs = eval(f"(lambda *args, **kwargs: (args, kwargs))({row['call']})", {**scope, "x": X})
        return flat(run(*args, **kwargs))


def run_row(row: dict[str, Any], cache: Path, is_plain: bool, compiles: Compiles) -> dict[str, Any]:
    """How the method of one row was compiled, and what it gives."""
    torch.compiler.reset()
    exec(row["first"], {"torch": torch})
    module = importlib.import_module(row["module"])
    torch.manual_seed(0)
    model = module.Model().eval()
    scope = {"m": module, "model": model, "torch": torch}
    exec(row["then"], scope)
    config = config_of_row(row)
    if is_plain:
        backend = torchair.get_npu_backend(compiler_config=config)
        compiled: Any = torch.compile(model.forward, backend=backend, dynamic=row["dynamic"])
    else:
        folder = str(cache / row["name"].replace(" ", "_").replace("/", "_"))
        compiled = torchair.inference.cache_compile(
            model.forward, config=config, dynamic=row["dynamic"], cache_dir=folder
        )
    compiles.count = 0
    result = dict[str, Any](name=row["name"])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result["eager"] = call_of_row(model.forward, row, scope)
            model = scope["model"] = module.Model.fresh(model) if hasattr(module.Model, "fresh") else model
            result["got"] = call_of_row(compiled, row, scope)
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {first_line(error)}"[:300]
    result["degraded"] = [str(each.message) for each in seen if issubclass(each.category, DegradedWarning)]
    result["graphs"] = compiles.count
    result["misses"] = [] if is_plain else compiled.misses
    exec(row["last"], scope)
    return result


def main(folder: Path) -> None:
    """Run all rows of the plan."""
    sys.dont_write_bytecode = True
    plan = json.loads((folder / "plan.json").read_text())
    sys.path.insert(0, str(folder / "modules"))
    compiles, results = Compiles(), list[dict[str, Any]]()
    for row in plan["rows"]:
        results.append(run_row(row, Path(plan["cache"]), plan["plain"], compiles))
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
