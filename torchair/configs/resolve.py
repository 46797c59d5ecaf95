"""Resolve a config for a backend: apply flat options, freeze it, and collect warnings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from torchair.configs import npugraph_ex
from torchair.configs.compiler_config import CompilerConfig, OptionTree
from torchair.configs.option import (
    ALL_MODES,
    CAPTURE_MODES,
    REDUCE,
    FlatView,
    Group,
    cell,
    root_of,
    unknown_name,
    walk,
)
from torchair.core.errors import BadOption, BadOptionType

Config = CompilerConfig | npugraph_ex.CompilerConfig
C = TypeVar("C", bound=Config)

_IDLE_HEAD = "The following options may have no effect in {mode} mode:"
_IDLE_TAIL = (
    "In {mode} mode these have no effect either: dimension gears (set_dim_gears), export (dynamo_export) and "
    "scopes of the graph engine (torchair.scope)."
)


def apply_options(config: Config, options: Mapping[str, Any]) -> None:
    """Assign the entries of `torch.compile(options=...)` to `config`."""
    if not isinstance(options, Mapping):
        raise BadOptionType("options must be a dict", got=f"{options!r} ({type(options).__name__})")
    flat = _flat_view(config)
    valid = sorted(flat_option_names(config))
    for name in options:
        if not isinstance(name, str):
            raise BadOptionType(
                "options= expects option names as keys", got=f"{name!r} ({type(name).__name__})"
            )
        if name not in valid:
            raise unknown_name(name, valid, where="options=")
    for name, value in options.items():
        setattr(flat, name, value)


def with_options(config: C, options: Mapping[str, Any] | None) -> C:
    """Return a copy of `config` with `options` applied; they affect only this compilation."""
    twin = copy.deepcopy(config)
    apply_options(twin, options or {})
    return twin


def with_mode(config: C, mode: str | None) -> C:
    """Return a copy of `config` with `torch.compile(mode=...)` applied."""
    if mode is None or mode == "default":
        return config
    if mode not in ALL_MODES:
        raise BadOption(
            f"mode={mode!r} is not a mode of this backend",
            near="valid modes: " + ", ".join(ALL_MODES),
            next="leave mode= out, or set config.mode",
        )
    twin = copy.deepcopy(config)
    if isinstance(twin, CompilerConfig):
        twin.mode = mode
    elif mode not in CAPTURE_MODES:
        raise BadOption(
            f"mode={mode!r} is graph mode, but this backend supports only capture mode",
            next="use torch.compile(backend='npu') for graph mode",
        )
    return twin


def flat_option_names(config: Config) -> list[str]:
    """Return the names that `apply_options` accepts for this config."""
    return [name for name, _ in walk(type(_flat_view(config)))]


def _flat_view(config: Config) -> FlatView:
    return config.npugraphex_config if isinstance(config, CompilerConfig) else config


def freeze(config: Config) -> dict[str, Any]:
    """Return plain values by dotted path for either kind of config, as a snapshot."""
    tree = copy.deepcopy(tree_of(config))
    return {path: cell(tree, path).raw for path, _ in walk(type(tree))}


def tree_of(config: Config) -> Group:
    """Return the tree that holds the values of either kind of config."""
    return config if isinstance(config, CompilerConfig) else root_of(config)


def cache_key_paths() -> frozenset[str]:
    """Return the paths of `freeze` that belong to a cache key."""
    return frozenset(path for path, row in walk(OptionTree) if row.cached)


def mode_warnings(config: Config) -> tuple[str | None, list[str]]:
    """Return the warning about options without effect in the chosen mode, or None, and the paths that it
    lists.

    The caller emits the warning.
    """
    if not isinstance(config, CompilerConfig):
        return None, []
    mode = config.mode.raw
    idle = [
        path
        for path, row in walk(type(config))
        if row.idle == mode and (row.idle_always or cell(config, path).raw != row.default)
    ]
    if not idle:
        return None, []
    listed = [f"config.{path}:{cell(config, path).raw}" for path in idle]
    tail = [_IDLE_TAIL.format(mode=mode)] if mode == REDUCE else []
    return "\n".join([_IDLE_HEAD.format(mode=mode), *listed, *tail]), idle


def deprecations(config: Config) -> list[str]:
    """Return the texts of the DeprecationWarnings for this config."""
    found: list[str] = []
    for path, row in walk(type(config)):
        value = cell(config, path).raw if row.deprecated else None
        if value in row.deprecated:
            found.append(f"config.{path}={value!r} is deprecated; use {row.deprecated[value]!r}")
    return found
