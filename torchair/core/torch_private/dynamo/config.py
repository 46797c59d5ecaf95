"""torch's own options that affect compilation."""

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
"""Prefixes of options that only affect messages, compile speed, or the location of tools; the last one is the
directory in which the process was started.
"""


def torch_options() -> str:
    """Return a digest of each group of options."""
    groups = {"dynamo": dynamo_config, "functorch": functorch_config, "inductor": inductor_config}
    return ", ".join(f"{name} {_digest(group.get_config_copy())}" for name, group in groups.items())


def options_with_code() -> list[str]:
    """Return the options set to functions or objects, for example user passes. Their behavior cannot be
    identified in another process.
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
        f"{name}={_encode(value)}"
        for name, value in sorted(options.items())
        if not name.startswith(WITHOUT_EFFECT)
    ]
    return hashlib.md5("\n".join(rows).encode(), usedforsecurity=False).hexdigest()


def _encode(value: Any) -> str:
    """Return a text that is the same in all processes: sets are sorted, and objects have no addresses."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_encode, value)))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_encode, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_encode(key)}: {_encode(item)}' for key, item in value.items()))}}}"
    try:
        return " ".join(identity(value))
    except NotPossible:
        return f"{type(value).__module__}.{type(value).__qualname__}"
