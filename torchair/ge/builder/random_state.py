"""Hold the random state of a graph.

Per generator that is a constant seed and a vector of offsets, one for each random op.

On an Ascend device the offsets are fed before every call, and the generator is advanced. Here torch's own
generator produces the numbers, which an offset of `FROM_GENERATOR` requests. A graph that is fed real offsets
computes its numbers from seed and offset alone.
"""

from __future__ import annotations

import torch

from torchair.ge.attr import Int, Str
from torchair.ge.builder.build import Const, builder
from torchair.ge.graph import Graph, Op, RandomFeed, Tensor, current_graph
from torchair.ge.host import Host

SEED, OFFSETS, UNPACK = "initial_seed", "offset_list", "unpack_generator_offsets"

# No generator has a negative offset.
FROM_GENERATOR = -1

_INT64 = 9
_OWNER = "_generator"


def random_state(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return seed and offset (rank-0 INT64 tensors) for one more random op on `device`."""
    graph = current_graph()
    unpack = next((op for op in graph.ops if _is_of(op, device)), None) or _start(graph, device)
    offset = Tensor(unpack, len(unpack.outputs), f"y{len(unpack.outputs)}")
    unpack.outputs.append(offset)
    offset.meta = Host(FROM_GENERATOR)
    count = len(unpack.outputs)
    unpack.attrs["num"] = Int(count)
    offsets = unpack.inputs[0]
    offsets.meta = Host((FROM_GENERATOR,) * count)
    offsets.desc.shape = (count,)
    graph.feeds[offsets.op.name] = RandomFeed(count)
    return _seed(graph, unpack), offset


def _is_of(op: Op, device: torch.device) -> bool:
    return op.type == "Unpack" and _OWNER in op.attrs and op.attrs[_OWNER].value == str(device)


def is_random(op: Op) -> bool:
    """Return whether the op uses a generator, so that its order among random ops matters."""
    return any(_OWNER in tensor.op.attrs for tensor in op.inputs)


def _start(graph: Graph, device: torch.device) -> Op:
    """Create seed, offsets and their Unpack without outputs; a second generator gets numbered names."""
    number = sum(op.type == "Unpack" and _OWNER in op.attrs for op in graph.ops)
    suffix = f"_{number}" if number else ""
    Const(initial_seed(device), dtype=_INT64, node_name=SEED + suffix)
    offsets = builder("Data")(
        index=len(graph.feeds), dtype=_INT64, shape=[0], placement="CPU", node_name=OFFSETS + suffix
    )
    offsets.meta = Host(())
    builder("Unpack")(offsets, num=0, axis=0, outputs=0, node_name=UNPACK + suffix)
    unpack = graph.by_name[UNPACK + suffix]
    unpack.attrs[_OWNER] = Str(str(device))
    return unpack


def _seed(graph: Graph, unpack: Op) -> Tensor:
    return graph.by_name[SEED + unpack.name.removeprefix(UNPACK)].outputs[0]


def initial_seed(device: torch.device) -> int:
    """Return the seed of the device's default generator as a signed 64-bit number."""
    module = torch if device.type in ("cpu", "meta") else torch.get_device_module(device)
    seed = module.initial_seed()
    return seed - (1 << 64) if seed >= 1 << 63 else seed
