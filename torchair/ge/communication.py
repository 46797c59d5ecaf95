"""List the ops by which processes communicate.

All processes of a group run them in the same order, whether or not their results are read.
"""

COLLECTIVES = frozenset(
    "Hcom" + name
    for name in (
        "AllGather", "AllGatherV", "AllReduce", "AllToAll", "AllToAllV", "AllToAllVC", "Broadcast", "Receive",
        "Reduce", "ReduceScatter", "ReduceScatterV", "Send",
    )
)  # fmt: skip
FUSED = frozenset({
    "AllGatherMatmul", "AllGatherMatmulV2", "AlltoAllMatmul", "AlltoAllvGroupedMatMul",
    "AlltoAllvQuantGroupedMatMul", "AttentionToFFN", "DistributeBarrier", "FFNToAttention",
    "GroupedMatMulAlltoAllv", "MatmulAllReduce", "MatmulAlltoAll", "MatmulReduceScatter",
    "MatmulReduceScatterV2", "MoeDistributeCombine", "MoeDistributeCombineAddRmsNorm",
    "MoeDistributeCombineV2",
    "MoeDistributeDispatch", "MoeDistributeDispatchV2", "QuantAllReduce", "QuantGroupedMatMulAlltoAllv",
    "QuantReduceScatter",
})  # fmt: skip
"""Collectives that also compute."""
TALKING = COLLECTIVES | FUSED
