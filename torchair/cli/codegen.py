"""Run `python -m torchair codegen ops.h -o ops.py`: generate Python builders for ops of C++ headers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torchair.core.errors import BadCall, BadPath, BadPrototype
from torchair.core.fingerprint.atomic_files import atomic_write
from torchair.ge.header_module_writer import module_text, why_no_builder
from torchair.ge.header_parser import Declared, read_reg_op
from torchair.ge.prototype import catalogue

DESCRIPTION = """Reads REG_OP prototypes in C++ headers and writes a Python module with a typed function for
each op. A converter calls the function to add the op to the graph. Importing the module declares the ops for
torchair.ge.custom_op, text dumps and exported files. If an op is declared twice, the last declaration is
used. An op that torchair already has with another prototype is an error: rename it, or skip it with
--skip-known.
"""
MODE = 0o644  # permissions of source text that an editor would write
SUFFIX = ".h"


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to the parser."""
    parser.description = DESCRIPTION
    parser.add_argument(
        "headers", nargs="+", metavar="HEADER.h", help="headers, or directories with *.h files at any depth"
    )
    parser.add_argument("-o", "--output", required=True, metavar="OPS.py", help="the module to write")
    parser.add_argument("--skip-known", action="store_true", help="skip ops that torchair already has")


def run(given: argparse.Namespace) -> int:
    """Write the module and return the exit status."""
    output = Path(given.output)
    if output.suffix != ".py":
        raise BadCall(f"{output} is not a Python file", next="name a .py file: -o OPS.py")
    if not output.parent.is_dir():
        raise BadPath(f"there is no directory {output.parent}", next="create it first")
    files = headers(given.headers)
    found = declared(files)
    chosen = [each for each in found if not given.skip_known or each.proto.name not in catalogue()]
    for each in chosen:
        catalogue().check(each.proto, each.at)
    if not chosen:
        where = ", ".join(map(str, files))
        raise BadPrototype(
            f"no ops to write for {where}",
            got=f"{len(found)} REG_OP",
            near="a declaration begins with REG_OP(Name)",
        )
    text = module_text([each.proto for each in chosen], [file.name for file in files])
    _write(output, text)
    without = [(each.proto.name, why) for each in chosen if (why := why_no_builder(each.proto))]
    print(f"wrote {output}: ops {len(chosen)}, builders {len(chosen) - len(without)}")
    for name, why in without:
        print(f"no builder for {name}: {why}")
    return 0


def headers(names: Sequence[str]) -> list[Path]:
    """Return the named files and all headers in the named directories, sorted by name."""
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if not path.exists():
            raise BadPath(
                f"there is no header {name}", next="name *.h files, or directories that contain them"
            )
        below = [each for each in path.rglob(f"*{SUFFIX}") if each.is_file()]
        if path.is_dir() and not below:
            raise BadPath(f"there is no *{SUFFIX} file in {name}", next="name another directory")
        files += sorted(below) if path.is_dir() else [path]
    return files


def declared(files: Sequence[Path]) -> list[Declared]:
    """Return the declarations of the headers. For duplicates, use the last and print it if it differs."""
    found: dict[str, Declared] = {}
    for file in files:
        for each in read_reg_op(_text(file), str(file)):
            before = found.pop(each.proto.name, None)
            if before is not None and before.proto != each.proto:
                print(f"{each.proto.name}: {each.at} replaces {before.at}", file=sys.stderr)
            found[each.proto.name] = each
    return list(found.values())


def _write(output: Path, text: str) -> None:
    try:
        with atomic_write(output, MODE) as file:
            file.write(text.encode())
    except OSError as error:
        why = error.strerror or error
        raise BadPath(
            f"cannot write {output}: {why}", next="pass a file in a writable directory with -o"
        ) from error


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except OSError as error:
        why = error.strerror or error
        raise BadPath(f"cannot read {file}: {why}", next="name a file that you can read") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        got = repr(error.object[error.start : error.end])
        raise BadPrototype("this header is not UTF-8 text", at=f"{file}:{line}", got=got) from error
