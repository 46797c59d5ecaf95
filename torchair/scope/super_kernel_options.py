"""Check the options of super kernels: `key=value` pairs, separated by colons."""

from __future__ import annotations

SWITCHES = ("feed-sync-all", "stream-fusion")
LISTS = ("dcci-before-kernel-start", "dcci-after-kernel-end", "dcci-disable-on-kernel")
CORES = ("debug-aic-num", "debug-aiv-num")
STRICT = "strict-scope-check"
CHECKS = ("bypass", "abort")
KEYS = (*SWITCHES, STRICT, *LISTS, *CORES)
RATIOS = "1:0, 0:1, 1:1 or 1:2"


def checked_options(text: str) -> str:
    """Return the text unchanged, or raise ValueError if it is not valid."""
    found = options_of(text)
    if CORES[0] in found or CORES[1] in found:
        cube, vector = (int(found.get(key, "0")) for key in CORES)
        if cube and vector and vector not in (cube, 2 * cube):
            raise ValueError(f"super kernel options: the ratio {cube}:{vector} of cores must be {RATIOS}")
    return text


def options_of(text: str) -> dict[str, str]:
    """Parse the text into keys and values."""
    found: dict[str, str] = {}
    for part in text.split(":") if text else ():
        key, separator, value = part.partition("=")
        key, value = key.strip(), value.strip()
        if not separator or key not in KEYS:
            raise ValueError(
                f"super kernel options: {part!r} is not a key=value pair; the keys are {', '.join(KEYS)}"
            )
        if key in found:
            raise ValueError(f"super kernel options: {key} is given twice, as {found[key]!r} and {value!r}")
        _check_value(key, value)
        found[key] = value
    return found


def _check_value(key: str, value: str) -> None:
    if key in SWITCHES and value not in ("0", "1"):
        raise ValueError(f"super kernel options: {key} must be 0 or 1, got {value!r}")
    if key == STRICT and value not in CHECKS:
        raise ValueError(f"super kernel options: {key} must be {' or '.join(CHECKS)}, got {value!r}")
    if key in LISTS and not all(name.strip() for name in value.split(",")):
        raise ValueError(f"super kernel options: {key} must be a list of op types, got {value!r}")
    if key in CORES and not (value.isdecimal() and int(value) > 0):
        raise ValueError(f"super kernel options: {key} must be a positive number, got {value!r}")
