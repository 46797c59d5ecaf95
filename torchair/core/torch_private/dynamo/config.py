"""Options of torch's own that change what is compiled."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import hashlib
from typing import Any

from torch._dynamo import config as dynamo_config
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

from torchair.core.errors import NotPossible
from torchair.core.fingerprint.python_objects import data, identity

WITHOUT_EFFECT = (
    "trace.",
    "log_",
    "verbose",
    "debug_dir",
    "worker_",
    "compile_threads",
    "_save_config_ignore",
    "cuda.cutlass_dir",
    "cutlass.cutlass_dir",
    "xpu.cutlass_dir",
)
"""Beginnings of names of options that change what is said, how fast a compile is, or where its tools are: the
last one is the folder that the process was started in.
"""


def torch_options() -> str:
    """A digest of each group of them."""
    groups = {"dynamo": dynamo_config, "functorch": functorch_config, "inductor": inductor_config}
    return ", ".join(f"{name} {_digest(group.get_config_copy())}" for name, group in groups.items())


def options_with_code() -> list[str]:
    """Those that were set to functions or objects, passes of the user's say: what these do, nobody can tell
    in another process.
    """
    groups = (functorch_config, inductor_config)
    return [
        name
        for group in groups
        for name, value in group.get_config_copy().items()
        if not group._is_default(name) and not _is_data(value)
    ]


def _is_data(value: Any) -> bool:
    try:
        return not callable(value) and bool(data(value))
    except NotPossible:
        return False


def _digest(options: dict[str, Any]) -> str:
    rows = [
        f"{name}={_told(value)}"
        for name, value in sorted(options.items())
        if not name.startswith(WITHOUT_EFFECT)
    ]
    return hashlib.md5("\n".join(rows).encode(), usedforsecurity=False).hexdigest()


def _told(value: Any) -> str:
    """Sets have another order in each process, and objects another address."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_told, value)))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_told, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_told(key)}: {_told(item)}' for key, item in value.items()))}}}"
    try:
        return " ".join(identity(value))
    except NotPossible:
        return f"{type(value).__module__}.{type(value).__qualname__}"
