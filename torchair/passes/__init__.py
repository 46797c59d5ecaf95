"""THE LISTS: every pass, in the order it runs, with the reason for its place. Order exists here and nowhere
else.
"""

from torchair.passes.fx.eliminate_dead_code import eliminate_dead_code
from torchair.passes.fx.optimize_sym_input import optimize_sym_input
from torchair.passes.fx.recover_view_inplace import recover_view_inplace
from torchair.passes.fx.reinplace_inputs import reinplace_input_mutated_ops
from torchair.passes.fx.remove_noop_ops import remove_noop_ops
from torchair.passes.fx.user_pass import user_post_pass, user_pre_pass
from torchair.passes.fx.view_to_reshape import view_to_reshape
from torchair.passes.ge.fold_transpose import move_transpose_into_mm
from torchair.passes.ge.prune import remove_dead_data_and_reorder_data_index, remove_dead_ops
from torchair.passes.ge.sym_pack import optimize_sym_pack
from torchair.passes.patterns.table import apply_pattern_passes
from torchair.passes.run import PassContext, Step, run, steps

__all__ = ["CAPTURE_PASSES", "FX_PASSES", "GE_PASSES", "PassContext", "Step", "run"]

FX_PASSES = steps(
    # The user's hook comes first: it sees the graph as AOTAutograd left it.
    Step(user_pre_pass, name="post_grad_custom_pre_pass"),
    # One spelling of each idea for everything below.
    Step(remove_noop_ops, on="remove_noop_ops", name="optimize_noop_ops"),
    Step(recover_view_inplace, name="recover_view_inplace_pattern"),
    # A size that a tensor input has anyway need not be fed; capture keys are made from the inputs, so not
    # there.
    Step(optimize_sym_input, unless="captures"),
    # Fusions, widest first: a narrow one would eat the parts of a wide one. They are written with `view`.
    Step(apply_pattern_passes, on="pattern_fusion_pass"),
    Step(view_to_reshape, after=(apply_pattern_passes,)),
    Step(user_post_pass, name="post_grad_custom_post_pass"),
)

CAPTURE_PASSES = steps(
    # What nobody reads must not stand in the way of the passes below.
    Step(eliminate_dead_code),
    # Memory. From here on nobody creates, moves or drops nodes.
    Step(reinplace_input_mutated_ops, on="input_inplace_pass"),
)

GE_PASSES = steps(
    # Fewer inputs first: what follows looks at who reads them.
    Step(optimize_sym_pack),
    Step(move_transpose_into_mm),
    # Last: what the passes above left without a reader.
    Step(remove_dead_ops),
    Step(remove_dead_data_and_reorder_data_index, after=(remove_dead_ops,)),
)
