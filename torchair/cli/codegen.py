"""`python -m torchair codegen ops.h -o ops.py`: builders of the ops that C++ headers declare."""

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
each op: called in a converter, it adds the op to the graph. Importing the module declares the ops, so that
torchair.ge.custom_op, text dumps and exported files know them, too. Of an op that is declared twice the last
declaration counts. An op that torchair has already, with another prototype, is an error: rename it, or leave
it out with --skip-known."""
MODE = 0o644  # source text, as an editor would write it
SUFFIX = ".h"


def declare(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = DESCRIPTION
    parser.add_argument(
        "headers", nargs="+", metavar="HEADER.h", help="headers, or directories: all *.h files below them"
    )
    parser.add_argument("-o", "--output", required=True, metavar="OPS.py", help="the module to write")
    parser.add_argument(
        "--skip-known", action="store_true", help="leave out ops that torchair has a prototype of"
    )


def run(given: argparse.Namespace) -> int:
    """Write the module; the exit status."""
    output = Path(given.output)
    if output.suffix != ".py":
        raise BadCall(f"{output} is no Python module", next="-o OPS.py")
    if not output.parent.is_dir():
        raise BadPath(f"there is no directory {output.parent}", next="make it first")
    files = headers(given.headers)
    found = declared(files)
    chosen = [each for each in found if not given.skip_known or each.proto.name not in catalogue()]
    for each in chosen:
        catalogue().check(each.proto, each.at)
    if not chosen:
        where = ", ".join(map(str, files))
        raise BadPrototype(f"nothing to write for {where}", got=f"{len(found)} REG_OP", near="REG_OP(Name) …")
    text = module_text([each.proto for each in chosen], [file.name for file in files])
    _write(output, text)
    without = [(each.proto.name, why) for each in chosen if (why := why_no_builder(each.proto))]
    print(f"wrote {output}: ops {len(chosen)}, builders {len(chosen) - len(without)}")
    for name, why in without:
        print(f"no builder of {name}: {why}")
    return 0


def headers(names: Sequence[str]) -> list[Path]:
    """The files meant: those named, and all headers below directories, in the order of their names."""
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if not path.exists():
            raise BadPath(f"there is no header {name}")
        below = [each for each in path.rglob(f"*{SUFFIX}") if each.is_file()]
        if path.is_dir() and not below:
            raise BadPath(f"there is no *{SUFFIX} file below {name}")
        files += sorted(below) if path.is_dir() else [path]
    return files


def declared(files: Sequence[Path]) -> list[Declared]:
    """What the headers declare. Of an op that two declare the last counts; where they differ, it is said."""
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
            f"{output} cannot be written: {why}", next="-o names a file, in a directory that you may write to"
        ) from error


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except OSError as error:
        why = error.strerror or error
        raise BadPath(f"{file} cannot be read: {why}", next="name a file that you may read") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        got = repr(error.object[error.start : error.end])
        raise BadPrototype("this header is no UTF-8 text", at=f"{file}:{line}", got=got) from error
