"""List every pass in the order in which it runs, with the reason for its place.

No other module decides the order of passes.
"""

from dataclasses import replace

from torchair.passes.fx.analysis.auto_functionalized import decompose_auto_functionalized
from torchair.passes.fx.cleanup.eliminate_dead_code import eliminate_dead_code
from torchair.passes.fx.cleanup.fold_as_strided_views import root_as_strided
from torchair.passes.fx.cleanup.host_constants import move_host_constants
from torchair.passes.fx.cleanup.lists_to_tensors import move_host_lists
from torchair.passes.fx.cleanup.optimize_sym_input import optimize_sym_input
from torchair.passes.fx.cleanup.remove_noop_ops import remove_noop_ops
from torchair.passes.fx.cleanup.user_pass import user_post_pass, user_pre_pass
from torchair.passes.fx.cleanup.view_to_reshape import view_to_reshape
from torchair.passes.fx.inplace.aliased_arguments import tell_shared_arguments
from torchair.passes.fx.inplace.recover_view_inplace import recover_view_inplace
from torchair.passes.fx.inplace.reinplace import reinplace_inplaceable_ops_pass
from torchair.passes.fx.inplace.reinplace_inputs import reinplace_input_mutated_ops
from torchair.passes.fx.inplace.remove_cat_ops import remove_cat_ops
from torchair.passes.fx.inplace.remove_self_copy import eliminate_self_copy
from torchair.passes.fx.inplace.workspace import replace_dynamic_workspace_ops
from torchair.passes.fx.streams.check_races import check_races
from torchair.passes.fx.streams.check_scopes import check_scopes
from torchair.passes.fx.streams.drop_hint_scopes import drop_idle_scopes
from torchair.passes.fx.streams.event_closure import apply_event_closure_with_multi_stream
from torchair.passes.fx.streams.event_record import apply_event_record
from torchair.passes.fx.streams.native_streams import name_native_streams
from torchair.passes.fx.streams.restore_scopes import place_scopes
from torchair.passes.fx.streams.single_stream import run_on_one_stream
from torchair.passes.fx.streams.stream_markers import resolve_default_stream_markers
from torchair.passes.fx.streams.wait_tensor import wait_for_tensors
from torchair.passes.ge.dead_code import remove_dead_data_and_reorder_data_index, remove_dead_ops
from torchair.passes.ge.fold_constants import fold_constants
from torchair.passes.ge.fold_sym_pack import optimize_sym_pack
from torchair.passes.ge.fold_transpose import move_transpose_into_mm
from torchair.passes.ge.mark_ref_inputs import mark_reference_inputs
from torchair.passes.ge.maxpool_masks import pool_with_masks
from torchair.passes.ge.remove_ref_copies import optimize_reference_op_redundant_copy
from torchair.passes.ge.side_effect_order import explicit_order_for_cmo, explicit_order_for_side_effect_nodes
from torchair.passes.ge.topological_sort import order_ops
from torchair.passes.ge.transpose_bitcast import move_mm_weight_transpose_after_bitcast
from torchair.passes.pass_manager import PassContext, Step, Tally, run, steps
from torchair.passes.patterns.sets.fix_numbers import fix_numbers
from torchair.passes.patterns.sets.pre_grad_fusions import fuse_before_autograd, fusion_names
from torchair.passes.patterns.sets.registry import apply_pattern_passes, rule_names

__all__ = [
    "CAPTURE_PASSES",
    "DYNAMO_PASSES",
    "FX_PASSES",
    "GE_PASSES",
    "HAND_OVER_PASSES",
    "LOWERED_PASSES",
    "PLACE_PASSES",
    "PassContext",
    "Step",
    "Tally",
    "names",
    "run",
]

DYNAMO_PASSES = steps(
    # AOTAutograd accepts ops, not stream objects.
    Step(name_native_streams, quiet=True, mandatory=True),
    # Otherwise AOTAutograd lets the op read such arguments as they were before the call.
    Step(tell_shared_arguments, quiet=True, mandatory=True),
    # Otherwise AOTAutograd turns these numbers into tensors.
    Step(fix_numbers, quiet=True, mandatory=True),
    # Before autograd decomposes the graph: a fused op has its own backward.
    Step(fuse_before_autograd, on="experimental_config.npu_fx_pass", fusion=True),
)

FX_PASSES = steps(
    # The user's hook comes first: it sees the graph as AOTAutograd left it.
    Step(user_pre_pass, on="user_pre_pass", name="post_grad_custom_pre_pass", mandatory=True),
    # Before anything is written in place: a constant is the same in every call.
    Step(move_host_constants, after=(user_pre_pass,), quiet=True, mandatory=True),
    # Use one form of each idea for all later passes. Memory comes first, while views still show whose memory
    # they are. Where the ops themselves run, autograd asks by which views an output came from its input.
    Step(root_as_strided, unless="runs_its_ops", quiet=True, mandatory=True),
    Step(remove_noop_ops, on="remove_noop_ops", name="optimize_noop_ops"),
    Step(recover_view_inplace, name="recover_view_inplace_pattern"),
    # A size that a tensor input already has need not be an input. Capture keys are computed from the inputs,
    # so capture mode skips this.
    Step(optimize_sym_input, unless="captures"),
    # Fusions, widest first: a narrow one would consume the parts of a wide one. They are written with `view`.
    Step(apply_pattern_passes, on="pattern_fusion_pass"),
    Step(view_to_reshape, after=(apply_pattern_passes,), mandatory=True),
    Step(user_post_pass, on="user_post_pass", name="post_grad_custom_post_pass", mandatory=True),
    # User passes may have opened scopes: all later passes rely on paired scopes.
    Step(check_scopes, after=(user_post_pass,), quiet=True, mandatory=True),
    Step(
        run_on_one_stream,
        on="ge_config.enable_single_stream",
        after=(check_scopes,),
        quiet=True,
        mandatory=True,
    ),
    # Without IR, nodes define what runs where. Hints are removed, and streams where the device has only one.
    # Waits are resolved while the graph still has the form that the user wrote.
    Step(drop_idle_scopes, on="runs_scopes", after=(check_scopes,), quiet=True, mandatory=True),
    Step(wait_for_tensors, on="runs_scopes", quiet=True, mandatory=True),
    Step(check_races, on="checks_races", after=(wait_for_tensors,), quiet=True, mandatory=True),
    Step(run_on_one_stream, on="drops_streams", after=(check_races,), quiet=True, mandatory=True),
    # This pass fixes the inputs of the program: later passes count them.
    Step(move_host_lists, on="host_lists", quiet=True, mandatory=True),
)

# Memory, where ops run as they appear in the graph.
IN_PLACE = (
    # Unread nodes must not block the passes below. After those passes, a node without readers may still
    # write.
    Step(eliminate_dead_code, mandatory=True),
    # Intermediates first: a value that was built in place step by step is written back as a whole.
    Step(reinplace_inplaceable_ops_pass, on="inplace_pass", after=(eliminate_dead_code,)),
    Step(reinplace_input_mutated_ops, on="input_inplace_pass", after=(eliminate_dead_code,)),
    # Omit the clones that the previous step found unnecessary.
    Step(
        decompose_auto_functionalized,
        on="input_inplace_pass",
        after=(reinplace_input_mutated_ops,),
        mandatory=True,
        completes=(reinplace_input_mutated_ops,),
    ),
    # Remove what the previous steps turned into self-copies.
    Step(eliminate_self_copy, after=(reinplace_input_mutated_ops,)),
)

LOWERED_PASSES = steps(*IN_PLACE)

# Events. They come before the passes that write in place, which query the order that events give.
EVENTS = (Step(apply_event_closure_with_multi_stream), Step(apply_event_record))

PLACE_PASSES = steps(
    # Put nodes that were lowered from ops in scopes back into scopes.
    Step(place_scopes, quiet=True, mandatory=True),
    *(replace(step, quiet=True) for step in EVENTS),
)

CAPTURE_PASSES = steps(
    # Producers are still functional here, so each can get another overload and another output location.
    Step(remove_cat_ops, on="remove_cat_ops"),
    *EVENTS,
    *IN_PLACE,
    # From here on, ops have extra arguments (workspace, out, stream identities) that no later pass looks
    # through.
    Step(replace_dynamic_workspace_ops, on="runs_op_by_op"),
    Step(resolve_default_stream_markers, after=(apply_event_closure_with_multi_stream,)),
)

GE_PASSES = steps(
    # Reduce the inputs first: later passes look at their readers.
    Step(optimize_sym_pack),
    Step(fold_constants, on="constant_folding"),
    # Matrix products accept transposes as flags.
    Step(move_transpose_into_mm, fusion=True),
    Step(move_mm_weight_transpose_after_bitcast, fusion=True),
    # Remove what the passes above left without a reader.
    Step(remove_dead_ops, on="dead_code_elimination"),
    # After this pass, the readers of pool indices are final.
    Step(pool_with_masks, after=(remove_dead_ops,)),
    Step(remove_dead_data_and_reorder_data_index, after=(remove_dead_ops,), mandatory=True),
    # Order only ops that remain in the graph.
    Step(explicit_order_for_side_effect_nodes, after=(remove_dead_ops,), mandatory=True),
    Step(explicit_order_for_cmo, after=(remove_dead_ops,), mandatory=True),
    # From here on, no pass creates or removes ops: names and order are final.
    Step(mark_reference_inputs, on="experimental_config.enable_ref_data", mandatory=True),
    Step(order_ops, on="sorts_ops", mandatory=True),
)

HAND_OVER_PASSES = steps(
    # Here reference ops return new values; the consumer of the exported graph writes in place. Other writes
    # stay Assign ops: as results (`mapping_assign_op_to_graph_output`) they would need a session that knows
    # whose memory they are, and a file has none. Inputs that are written are reference inputs in the file.
    Step(optimize_reference_op_redundant_copy),
)


def names() -> dict[str, bool]:
    """Map each switchable pass and fusion of graph mode to whether it is mandatory."""
    listed = (*DYNAMO_PASSES, *FX_PASSES, *GE_PASSES, *HAND_OVER_PASSES, *LOWERED_PASSES)
    fusions = dict.fromkeys([*fusion_names(), *rule_names()], False)
    return {step.title: step.mandatory for step in listed} | fusions
