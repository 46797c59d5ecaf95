"""Ops by which processes talk to each other. All of a group run them in the same order, whoever reads their
results.
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
"""They compute, too."""
TALKING = COLLECTIVES | FUSED
