"""Generated code as a module that can be run by itself, on random inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

MAIN = '''
def random_tensor(size, stride, dtype, device):
    made = torch.empty_strided(size, stride, dtype=dtype, device=device)
    is_real = dtype.is_floating_point or dtype.is_complex
    return made.copy_(torch.randn(size) if is_real else torch.randint(0, 2, size))


def main():
    """Call the kernel with random inputs of the shapes it was traced with."""
    return kernel(
{arguments}
    )


if __name__ == "__main__":
    print(main())
'''


KINDS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def module_text(program: Any, inputs: Sequence[Any]) -> str:
    """The text of `output_code.py`. A program that has no text of its own is shown as it is."""
    write = getattr(program, "standalone", None)
    text = None if write is None or program.kind == "native" else write()  # a library is nothing to read
    if text is None:
        return program.source
    # The symbol at position i is 2 + i: different symbols, different sizes.
    symbols = {value.node.expr: 2 + at for at, value in enumerate(inputs) if isinstance(value, torch.SymInt)}
    arguments = "\n".join(f"        {_argument(value, symbols)}," for value in inputs)
    return f"import torchair  # its ops\n{text}\n{MAIN.format(arguments=arguments)}"


def _argument(value: Any, symbols: dict[Any, int]) -> str:
    if isinstance(value, torch.Tensor):
        size = tuple(_number(x, symbols) for x in value.size())
        stride = tuple(_number(x, symbols) for x in value.stride())
        return f"random_tensor({size}, {stride}, {value.dtype}, {str(value.device)!r})"
    return repr(_number(value, symbols))


def _number(value: Any, symbols: dict[Any, int]) -> Any:
    """A symbolic number where symbols have these values; those that are not listed are 2."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    expr = value.node.expr
    known = expr.xreplace({symbol: symbols.get(symbol, 2) for symbol in expr.free_symbols})
    return KINDS[type(value)](known)
