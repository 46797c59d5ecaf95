"""One of three processes that run collectives, eagerly and in graphs, and say what came of it."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torchair
from torchair.core.errors import DegradedWarning

RANKS = 3
HCOM = re.compile(r"\bge\.(Hcom\w+)")


REFUSED = {
    "gather stacked": lambda given, me: torch.stack([x.t() for x in given]),
    "gather uneven": lambda given, me: torch.cat([x[: rank + 1] + 1 for rank, x in enumerate(given)]),
    "exchange lists": lambda given, me: torch.cat([(x * 2).split([1, 2, 3])[me].t() for x in given], 1),
}
"""What gloo does not do eagerly, though others do: its result, of what all ranks have."""


def argument(rank: int) -> torch.Tensor:
    """Each rank has another."""
    return torch.arange(36.0).reshape(6, 6) + rank


def programs(rank: int, some: Any) -> dict[str, tuple[Any, Any, list[str]]]:
    """Name -> program, its argument, and the ops that its IR has."""
    base = argument(rank)

    def all_reduce(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def all_reduce_max(x):
        y = x * (rank + 1)
        dist.all_reduce(y, op=dist.ReduceOp.MAX, group=some)
        return y

    def all_reduce_mean(x):
        y, part = x + 1, x.new_empty(2, 6)
        dist.all_reduce(y, op=dist.ReduceOp.AVG)
        dist.reduce_scatter_tensor(part, y + rank, op=dist.ReduceOp.AVG)
        return part

    def all_reduce_product(x):
        y = x + 1
        dist.all_reduce(y, op=dist.ReduceOp.PRODUCT)
        return y

    def unused(x):
        y = x * 1
        dist.all_reduce(y)
        return x if rank == 0 else y

    def twice(x):
        y, z = x * 1, x * (2 if rank == 1 else 1)
        dist.all_reduce(y)
        dist.all_reduce(z)
        return y - z

    def gather(x):
        out = x.new_empty(RANKS * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(out, x + 1)
        return out * 2

    def gather_stacked(x):
        out = x.new_empty(RANKS, *x.shape)
        dist.all_gather_into_tensor(out, x.t())
        return out

    def gather_list(x):
        out = [torch.empty_like(x) for _ in range(RANKS)]
        dist.all_gather(out, x + 1)
        return out[0] + 2 * out[1] + 3 * out[2]

    def gather_numbers(x):
        out = [x.new_empty(()) for _ in range(RANKS)]
        dist.all_gather(out, x[0, 0] + 1)
        return out[0] + 2 * out[1]

    def gather_uneven(x):
        out = [x.new_empty(number + 1, 6) for number in range(RANKS)]
        dist.all_gather(out, x[: rank + 1] + 1)
        return torch.cat(out)

    def scatter(x):
        out = x.new_empty(x.shape[0] // RANKS, *x.shape[1:])
        dist.reduce_scatter_tensor(out, x + 1)
        return out * 2

    def broadcast(x):
        y = x + rank
        dist.broadcast(y, 1)
        return y * 2

    def broadcast_in_a_group(x):
        if rank == 1:
            return x
        y = x * 3
        dist.broadcast(y, 2, group=some)
        return y

    def exchange(x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x * 2)
        return out + 1

    def exchange_uneven(x):
        sent = [1, 2, 3]
        received = [rank + 1] * RANKS
        out = x.new_empty(sum(received), 6)
        dist.all_to_all_single(out, x * 2, received, sent)
        return out + 1

    def exchange_lists(x):
        given = [part.t() for part in (x * 2).split([1, 2, 3])]
        made = [x.new_empty(6, rank + 1) for _ in range(RANKS)]
        dist.all_to_all(made, given)
        return torch.cat(made, 1)

    def messages(x):
        y, got = x * 2, torch.empty_like(x)
        if rank == 1:
            return x
        if rank == 0:
            dist.send(y, 2)
            dist.recv(got, 2)
        else:
            dist.recv(got, 0)
            dist.send(y, 0)
        return (got + y).relu()

    one, many = ["HcomAllGather"], ["HcomAllToAllV"]
    talk = [] if rank == 1 else ["HcomReceive", "HcomSend"]
    made = {
        "all_reduce": (all_reduce, base, ["HcomAllReduce"]),
        "all_reduce bf16": (all_reduce, base.bfloat16(), ["HcomAllReduce"]),
        "all_reduce int64": (all_reduce, base.long(), ["HcomAllReduce"]),
        "all_reduce empty": (all_reduce, base[:0], ["HcomAllReduce"]),
        "all_reduce strided": (all_reduce, base.t(), ["HcomAllReduce"]),
        "all_reduce product": (all_reduce_product, base, ["HcomAllReduce"]),
        "all_reduce uint8": (all_reduce, base.byte(), ["HcomAllReduce"]),
        "mean": (all_reduce_mean, base, ["HcomAllReduce", "HcomReduceScatter"]),
        "unused": (unused, base, ["HcomAllReduce"]),
        "twice": (twice, base, ["HcomAllReduce"] * 2),
        "gather": (gather, base, one),
        "gather stacked": (gather_stacked, base, one),
        "gather list": (gather_list, base, one),
        "gather numbers": (gather_numbers, base, one),
        "gather uneven": (gather_uneven, base, ["HcomBroadcast"] * RANKS),
        "scatter": (scatter, base, ["HcomReduceScatter"]),
        "scatter fp16": (scatter, base.half(), ["HcomReduceScatter"]),
        "broadcast": (broadcast, base, ["HcomBroadcast"]),
        "broadcast int32": (broadcast, base.int(), ["HcomBroadcast"]),
        "exchange": (exchange, base, ["HcomAllToAll"]),
        "exchange uneven": (exchange_uneven, base, many),
        "exchange lists": (exchange_lists, base, many),
        "messages": (messages, base, talk),
        "broadcast in a group": (broadcast_in_a_group, base, [] if rank == 1 else ["HcomBroadcast"]),
    }
    if rank != 1:
        made["all_reduce max in a group"] = (all_reduce_max, base, ["HcomAllReduce"])
    return made


def check(fn: Any, x: torch.Tensor, want: torch.Tensor, mode: str, codegen: str, dynamic: bool) -> None:
    """Compiled without graph breaks, it does the same, twice."""
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = mode, codegen
    compiled = torch.compile(
        fn, backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic, fullgraph=True
    )
    for _ in range(2):
        got = compiled(x)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.stride() == want.stride(), (got.stride(), want.stride())


def ops_of(fn: Any, x: torch.Tensor, want: torch.Tensor, folder: Path) -> list[str]:
    """The collectives in the IR of a program."""
    torch._dynamo.reset()
    folder.mkdir(parents=True)
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "reference"
    config.debug.graph_dump.type, config.debug.graph_dump.path = "py", str(folder)
    backend = torchair.get_npu_backend(compiler_config=config)
    got = torch.compile(fn, backend=backend, dynamic=False, fullgraph=True)(x)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    files = sorted(folder.rglob("*optimized*.py"))
    assert files, [str(path) for path in folder.rglob("*")]
    return sorted(HCOM.findall(files[0].read_text()))


def main(store: str, rank: int, count: int, names: list[str]) -> None:
    """Each program in so many of the ways in which it can be compiled; half of them, if it is one way."""
    warnings.simplefilter("error", DegradedWarning)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    some = dist.new_group([0, 2])
    ways = [
        ("max-autotune", "eager", False), ("max-autotune", "inductor", True), ("npugraph_ex", "eager", True),
        ("npugraph_ex", "inductor", False),
    ]  # fmt: skip
    for number, (name, (fn, given, ops)) in enumerate(programs(rank, some).items()):
        if (names and name not in names) or (not names and count == 1 and number % 2):
            continue
        everyone = [argument(other) for other in range(RANKS)]
        want = REFUSED[name](everyone, rank) if name in REFUSED else fn(given)
        # Where one process fails the others may wait for it for ever: all are ended then.
        with dying(name):
            # torch notes on results which of their sizes are symbols, and a program may return its argument.
            x = given.clone()
            found = ops_of(fn, x, want, Path(f"{store}-{rank}", name.replace(" ", "_")))
            assert found == ops, f"{found} in place of {ops}"
            for way in (ways * 2)[number % len(ways) :][:count]:
                check(fn, x, want, *way)
    dist.barrier()


@contextlib.contextmanager
def dying(name: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        traceback.print_exc()
        print(f"{name} failed", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
