"""Read the switches of passes: `ge_config.optimization_switch`, a text, and
`fusion_config.fusion_switch_file`, a JSON file with switches for groups of passes. The text overrides the
file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchair.configs.kinds import Kind
from torchair.core.errors import BadOption, BadOptionType

FORM = "`PassA:on;PassB:off`"
GROUPS = ("GraphFusion", "UBFusion")
ALL = "ALL"
_VALUES = {"on": True, "off": False}

# Passes of the Ascend engine that can be switched. Their switches are passed on to it.
_ENGINE_PASSES = """
AABiasaddConvFusion ADeformableConv2dPass ADepthwiseFusionPass ALSTMFusionPass AReduceMeanFusionPass
AReduceSumFusionPass AddNFusionPass AddRmsNormFusionGraphPass ApplyAddOutputPass ArgMaxWithFusionPass
AvgPool3DFusionPass AvgPool3DGradFusionPass AvgPoolGradFusionPass AvgPoolQuantProcessFusionPass
BatchMatMulFusionPass BatchMatmulV2QuantProcessFusionPass BatchNormBnInferFusionPass
BatchNormGradBnInferGradFusion BatchNormGradInfGradFusion COPYPass CastRemoveFusionPass CommonLSTMFusionPass
CommonSubexpressionEliminationPass ConstToAttrGatherV2Fusion ConstToAttrPass ConstToAttrReduceSumFusion
ConstToAttrResizeNearestNeighborGradFusion ConstToAttrStridedSliceV2Fusion Conv2DQuantProcessFusionPass
Conv2DTDQuantProcessFusionPass DWConv2DQuantProcessFusionPass DeConvQuantProcessFusionPass
DeformableOffsetsFusionPass DepthwiseDfFusionPass DepthwiseDwMulFusionPass DepthwiseFusionPass
DepthwiseInsertTransDataFusionPass DepthwiseToConv2dFusionPass DreluFusionPass DynamicGRUV2GradFusionPass
DynamicRNNFusionPass DynamicRNNGradAFusionPass DynamicRNNGradAlignFusionPass DynamicRNNGradDAlignFusionPass
DynamicRNNGradDFusionPass DynamicRNNGradFusionPass DynamicRNNInsertTransposePass DynamicRNNSeqFusionPass
EinsumPass FCQuantProcessFusionPass FixPipeAbilityProcessPass FlattenV2Pass FusedBatchNormBertFusionPass
FusedBatchNormGradFusionPass FusedBatchnormFusionPass GlobalAvgPoolPass GroupConv2DQuantProcessFusionPass
HostBNFusionPass HostShapeOptimizationPass In-placeAddRmsNormFusionPass MapIndexFusionPass
MatMul2MatMulV2FusionPass MatmulV2QuantProcessFusionPass MaxPoolWithArgmaxFusionPass NormalizeFusionPass
PReluGradFusionPass PackFusionPass PassThroughFusionPass PassThroughSecondFusionPass PermuteFusionPass
PoolingQuantProcessFusionPass PriorBoxPass ProposalFusionPass RNNFusionPass SPPPass SingleBatchNormFusion
SoftmaxGradExtFusion SpatialTransformerDPass TbeAntiquantMaxpoolingFusionPass TbeConvCommonRules0FusionPass
TbeConvCommonRules2FusionPass TbeConvDequantS16FusionPass TbeConvRequantFusionPass
TfMergeConv2DBackpropInputFusionPass TfMergeSubFusionPass TfTagNoConstFoldingFusionPass
TransdataCastFusionPass TransposedUpdateFusionPass UnpackFusionPass V100NotRequantFusionPass
V200NotRequantFusionPass WeightQuantBatchMatmulV2TransposeFusionPass YoloPass YoloV2DetectionOutputPass
YoloV3DetectionOutputV2Pass ZConcatDFusionPass ZConcatExt2FusionPass ZConfusionSoftmaxGradFusionPass
ZSplitVDFusionPass ZSplitVFusionPass clip_by_norm_nodivsquaresum
"""
ENGINE_PASSES = frozenset(_ENGINE_PASSES.split())


class SwitchText(Kind):
    """Accept None or names of passes, each with `on` or `off`."""

    def text(self) -> str:
        return f"`None` or {FORM}"

    def check(self, path: str, value: Any) -> str | None:
        if value is not None and not isinstance(value, str):
            got = f"{value!r} ({type(value).__name__})"
            raise BadOptionType(f"{path} must be a string or None", got=got, near=f"expected form: {FORM}")
        parse(path, value or "")
        return value


@dataclass(frozen=True)
class PassSwitches:
    """Switches of passes: by name, and for all fusions that are not named."""

    named: Mapping[str, bool] = field(default_factory=dict[str, bool])
    fusions: bool = True

    def asked(self, name: str, *, fusion: bool) -> bool:
        """Return whether this pass is switched on."""
        return self.named.get(name, self.fusions if fusion else True)


def pass_switches(text: str | None, file: str | None, *, fusions: bool) -> PassSwitches:
    """Combine the text and the file; `fusions` is the default if neither sets a switch."""
    groups = read_groups(file) if file else {}
    graph = groups.get(GROUPS[0], {})
    named = {name: on for group in groups.values() for name, on in group.items() if name != ALL}
    named |= parse("ge_config.optimization_switch", text or "")
    return PassSwitches(named, graph.get(ALL, fusions))


def parse(path: str, text: str) -> dict[str, bool]:
    """Parse `PassA:on;PassB:off` into a dictionary."""
    found: dict[str, bool] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, value = (piece.strip() for piece in part.partition(":"))
        if not name or value not in _VALUES:
            raise BadOption(f"{path} has an invalid part", got=repr(part), near=f"expected form: {FORM}")
        found[name] = _VALUES[value]
    return found


def read_groups(file: str) -> dict[str, dict[str, bool]]:
    """Read `{"Switch": {"GraphFusion": {"ALL": "off", "PassA": "on"}, "UBFusion": {…}}}`, by group."""
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _bad_file(file, str(error)) from error
    groups = content.get("Switch") if isinstance(content, dict) else None
    if not isinstance(groups, dict):
        raise _bad_file(file, f"{str(content)[:60]}, without the object 'Switch'")
    for name, group in groups.items():
        values = group.values() if isinstance(group, dict) else [group]
        if name not in GROUPS or not all(isinstance(value, str) and value in _VALUES for value in values):
            raise _bad_file(file, f"{name}: {str(group)[:60]}")
    return {name: {key: _VALUES[value] for key, value in group.items()} for name, group in groups.items()}


def _bad_file(file: str, got: str) -> BadOption:
    return BadOption(
        f"fusion_config.fusion_switch_file {file} is not a valid switch file",
        got=got,
        near='{"Switch": {"GraphFusion": {"PassA": "on", "ALL": "off"}, "UBFusion": {}}}',
    )
