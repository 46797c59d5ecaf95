"""Run `python -m torchair run model.air --input x.npy`: run a graph file on arrays."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from torchair.backend.export.loader import load_air
from torchair.core.errors import BadPath
from torchair.core.torch_private.fake.pytree import leaves_by_path


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to the parser."""
    parser.description = (
        "Compiles a graph file for this machine and runs it on arrays, without the model's code."
    )
    parser.add_argument("file", metavar="MODEL.air", help="a file written by torchair.dynamo_export")
    parser.add_argument(
        "--input", action="append", default=[], metavar="X.npy", help="one argument of the model, in order"
    )
    parser.add_argument("--save", metavar="FOLDER", help="write each result as .npy file to this directory")
    parser.add_argument("--device", default="cpu", help="where to run: cpu, cuda")


def run(given: argparse.Namespace) -> int:
    """Run the file and return the exit status."""
    model = load_air(given.file, device=given.device)
    results = leaves_by_path(model(*(_array(name) for name in given.input)))
    for place, value in results.items():
        is_tensor = isinstance(value, torch.Tensor)
        print(
            f"result{place}: {value.dtype} {list(value.shape)}" if is_tensor else f"result{place}: {value!r}"
        )
    if given.save:
        folder = Path(given.save)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = [value for value in results.values() if isinstance(value, torch.Tensor)]
        for number, value in enumerate(tensors):
            plain = value.float() if value.dtype is torch.bfloat16 else value
            np.save(folder / f"output_{number}.npy", plain.cpu().numpy())
    return 0


def _array(name: str) -> torch.Tensor:
    if not Path(name).is_file():
        raise BadPath(f"there is no file {name}", next="write one with numpy.save")
    try:
        return torch.from_numpy(np.load(name, allow_pickle=False))
    except (ValueError, TypeError, AttributeError) as error:
        raise BadPath(f"{name} is not a numeric array: {error}", next="write one with numpy.save") from error
