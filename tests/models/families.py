"""Tiny random models of `transformers` families, made by rules: no family has code of its own.

`tiny(family)` takes the family's default configuration, makes its numbers small by the names of the fields
(`SIZES`, `LISTS`), builds the base model and looks for inputs its `forward` takes (`FEEDS`). Nothing is
downloaded. A family that the rules cannot make small enough, or whose `forward` wants inputs they do not
know, is `Unfit`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoModel, PreTrainedConfig

BATCH, LENGTH, VOCAB, WIDTH, PIXELS, SAMPLES, FRAMES = 2, 8, 99, 32, 32, 800, 32
PARAMETERS = 5_000_000
Inputs = dict[str, Any]


class Unfit(Exception):
    """The rules make no small runnable model of this family; the message says why."""


@dataclass(frozen=True)
class Tiny:
    """A model in eval mode and the keyword arguments it takes."""

    family: str
    model: nn.Module
    inputs: Inputs


# The first pattern that matches a whole field name gives its value: a number, or a function of the default.
# Width 32 is 4 heads of 8 everywhere, an image is 4 x 4 patches of 8, and every token id is below 99.
SIZES: tuple[tuple[str, int | Callable[[int], int]], ...] = (
    (r".*(token_id|token_index|_bos_id|_eos_id|_start_id|_end_id)", lambda v: v % VOCAB),
    (r"(im_newline|mask|unk|tag_pad|subs_pad|image_patch)_(id|index)", lambda v: v % VOCAB),
    (r"type_vocab_size|n_langs", lambda v: v),
    (r".*vocab(_size)?|vocab_size.*|num_embeddings", VOCAB),
    (r".*(num_key_value_heads|num_kv_heads|kv_n_heads)", lambda v: min(v, 2)),
    (r"mamba_(n|num)_heads", 8),
    (r".*(attention_heads|n_heads?|num_heads)", 4),
    (r"qk_head_dim|cross_head_dim", 16),
    (r"query_pre_attn_scalar", 8),
    (r".*(head_dim|_d_head|dim_head|head_size)|d_kv|rotary_dim|kv_channels", 8),
    (r".*lora_rank|.*_rank", 16),
    (r".*(first_k_dense_replace|num_dense_layers|max_window_layers)", 1),
    (r"num_feat_extract_layers|num_feature_levels", lambda v: v),
    (r"num_(register_tokens|kv_shared_layers|nextn_predict_layers|hash_functions)", lambda v: min(v, 1)),
    (r"full_attention_interval|(attn|expert)_layer_period", 2),
    (r"(attn|expert)_layer_offset", 1),
    (r".*(layers?|blocks)|depth", lambda v: min(v, 2)),
    (r".*(experts_per_tok(en)?|moe_topk|moe_top_k|moe_k)", 2),
    (r"(n|num)_(shared_experts|shared_expert)|zero_expert_num|moe_num_shared_experts", 1),
    (r".*num_(local_)?experts|n_routed_experts", 4),
    (r"n_group|topk_group|num_expert_group", 1),
    (r".*(intermediate_size.*|ffn_dim|mlp_dim|ffn_hidden_size|feedforward.*|linear_units)", 64),
    (r"d_ff|dff|dim_ff|d_inner", 64),
    (r".*max_position_embeddings|max_(position|source|target|2d).*", 64),
    (r"n_positions|n_ctx|max_seq_len|max_ep_len", 64),
    (r"(image|img|input|pretrain_image|max_image|max_img|train_image)_size", PIXELS),
    (r"patch_size|encoder_stride", lambda v: min(v, 8)),
    (r"num_mel_bins|n_mel_bins|input_feat_size|input_feat_per_channel", 16),
    (r"sliding_window.*|local_attention|attention_window|local_radius|window_size", 4),
    (r"num_(queries|frames)|num_query_tokens|num_denoising", 4),
    (r"num_conv_pos_embeddings|num_buckets|segment_means_seq_len|num_landmarks|.*chunk_size", 8),
    (r"num_conv_pos_embedding_groups|upsample_groups", 4),
    (r"(mamba_d_state|state_size|ssm_state_size)", 8),
    (r"time_step_rank|mamba_dt_rank", 4),
    (r"coordinate_size", 6),
    (r"shape_size", 4),
    (r".*(hidden_size|hidden_dim|_proj_size|projection_(dim|size)|embed_proj_dim)", WIDTH),
    (r".*(embedding_size|emb_size|output_size|embed_dim|bottleneck_size)", WIDTH),
    (r"d_model|n_embd|emb_dim|dim|codebook_dim|codevector_dim|output_dim", WIDTH),
    (r"(backbone_|pooler_|true_|word_|text_|audio_|fusion_|neck_)(hidden|size|out_channels).*", WIDTH),
    (r"num_filters|codebook_size|base_channels", WIDTH),
    (r".*(upsample_initial_channel|_predictor_channels|conv_channels)", WIDTH),
    (r"num_position_embeddings", 16),
)  # fmt: skip


def _ones(stages: list[int]) -> list[int]:
    return [1] * len(stages)


def _times_smallest(stages: list[int]) -> list[int]:
    return [max(1, size // min(stages)) for size in stages]


# Lists of one number per stage: (field name, what becomes of the list).
LISTS: tuple[tuple[str, Callable[[list[Any]], list[Any]]], ...] = (
    (r"depths?|layers_per_stage|num_layers|.*blocks_per_stage|stage_num_blocks|block_repeats", _ones),
    (
        r"(encoder_|neck_)?hidden_sizes|embed_dims?|conv_dim|channels|dims",
        lambda v: [8 * size for size in _times_smallest(v)],
    ),
    (r"num_attention_heads|num_heads", _times_smallest),
    (r"(image|img|input)_size|crop_size", lambda v: [PIXELS] * len(v)),
    (r"mrope_section", lambda v: [2, 1, 1]),
    (r".*token_ids?", lambda v: [number % VOCAB for number in v]),
)
# The families that are swept: what the rules make of them runs eagerly, in seconds.
FAMILIES: tuple[str, ...] = (
    "aimv2", "albert", "altclip", "arcee", "bamba", "bart", "beit", "bert", "bert-generation", "big_bird",
    "bigbird_pegasus", "biogpt", "bit", "bitnet", "blenderbot", "blenderbot-small", "blip", "bloom",
    "camembert", "canine", "chinese_clip", "clip", "clip_text_model", "clip_vision_model", "clipseg",
    "codegen", "cohere", "cohere2", "cohere2_moe", "convbert", "convnext", "convnextv2", "cpmant", "ctrl",
    "cwm", "data2vec-audio", "data2vec-text", "data2vec-vision", "deberta", "deberta-v2", "deepseek_v2",
    "deepseek_v3", "deit", "diffllama", "dinov2", "dinov3_convnext", "distilbert", "dpr", "dpt", "electra",
    "ernie4_5", "ernie4_5_moe", "esm", "eurobert", "exaone4", "exaone4_5", "exaone_moe", "falcon",
    "falcon_h1", "flaubert", "flex_olmo", "focalnet", "fuyu", "gemma3_text", "git", "glm4", "glpn", "gpt2",
    "gpt_neo", "gpt_neox", "gpt_oss", "granite", "granitemoehybrid", "granitemoeshared", "groupvit", "gte",
    "hiera", "higgs_audio_v2", "hubert", "hy_v3", "ijepa", "imagegpt", "internvl_vision", "jais2", "jetmoe",
    "kimi_linear", "lasr_encoder", "layoutlm", "layoutlmv3", "led", "lfm2", "llama", "llama4_text",
    "longcat_flash", "longformer", "luke", "mamba", "mamba2", "mbart", "megatron-bert", "metaclip_2",
    "minicpm3", "minimax", "mistral", "mlcd_vision_model", "mobilenet_v1", "modernbert-decoder", "mpnet",
    "mra", "mvp", "nemotron_h", "nllb-moe", "nystromformer", "olmo3", "openai-gpt", "owlv2",
    "parakeet_encoder", "pegasus", "persimmon", "phi3", "pixio", "plbart", "reformer", "resnet", "sew",
    "sew-d", "speech_to_text", "t5", "unispeech-sat", "vit", "vit_mae", "vit_msn", "vivit", "wav2vec2",
    "wav2vec2-conformer", "wavlm",
)  # fmt: skip
# What no rule can know: a family's own field, or a size that must fit others.
LATENT = {"num_key_value_heads": 4}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("deepseek_v3", "minicpm3", "longcat_flash", "youtu"), LATENT),
    "deepseek_v2": {**LATENT, "num_experts_per_tok": 2},
    "mamba2": {"num_heads": 8},
    "reformer": {"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (4, 2), "attn_layers": ["local", "lsh"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "esm": {"vocab_size": VOCAB, "pad_token_id": 1, "mask_token_id": 2},
    "bit": {"num_groups": 8, "hidden_sizes": [32, 32, 64, 64]},
}


def families() -> list[str]:
    """Every family that has a base model, in alphabetical order."""
    return sorted(config.model_type for config in MODEL_MAPPING if config.model_type in CONFIG_MAPPING)


def small_config(kind: type[PreTrainedConfig], own: dict[str, Any] | None = None) -> PreTrainedConfig:
    """The default configuration with its numbers, those of nested configurations too, made small."""
    default = kind()
    chosen: dict[str, Any] = {"use_cache": False} if hasattr(default, "use_cache") else {}
    for name, value in vars(default).items():
        if isinstance(value, PreTrainedConfig):
            chosen[name] = small_config(type(value))
        elif (small := _small(name, value)) is not value:
            chosen[name] = small
    return kind(**{**chosen, **(own or {})})


def _small(name: str, value: Any) -> Any:
    """The small value of a field, or the value itself."""
    if isinstance(value, dict):
        made = {key: _small(key, item) for key, item in value.items() if isinstance(key, str)}
        return made if any(made[key] is not value[key] for key in made) and len(made) == len(value) else value
    if isinstance(value, (list, tuple)):
        rule = next((rule for pattern, rule in LISTS if re.fullmatch(pattern, name)), None)
        return value if rule is None or not value else type(value)(rule(list(value)))
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    rule = next((rule for pattern, rule in SIZES if re.fullmatch(pattern, name)), value)
    made = rule(value) if callable(rule) else rule
    return min(value, made)


def tiny(family: str, seed: int = 0) -> Tiny:
    """A small seeded model of the family with inputs it runs on."""
    try:
        config = small_config(CONFIG_MAPPING[family], OWN.get(family))
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
    except Exception as error:
        raise Unfit(f"no small configuration: {first_line(error)}") from error
    if count > PARAMETERS:
        raise Unfit(f"{count} parameters")
    torch.manual_seed(seed)
    model = AutoModel.from_config(config).eval()
    wrong = []
    for feed in feeds(model):
        try:
            with torch.no_grad():
                model(**feed)
        except Exception as error:
            wrong.append(f"{', '.join(feed)}: {first_line(error)}")
        else:
            return Tiny(family, model, feed)
    raise Unfit("; ".join(wrong) or "no inputs known")


def first_line(error: BaseException) -> str:
    """The error in one line; of one that Dynamo wraps, the one inside."""
    error = getattr(error, "inner_exception", None) or error
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def feeds(model: nn.Module) -> Iterator[Inputs]:
    """Inputs to try, widest first: tokens and images together, then what the model calls its main input."""
    torch.manual_seed(1)
    taken = inspect.signature(model.forward).parameters
    config: Any = model.config
    required = [
        name
        for name, parameter in taken.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    main = getattr(model, "main_input_name", "input_ids")
    for wanted in ((main, "input_ids", "pixel_values"), (main, "input_ids"), (main,)):
        for make in FEEDS:
            made = make(config)
            names = [name for name in made if name in taken and (name in wanted or name not in MAIN)]
            feed = {name: made[name] for name in names}
            if "input_ids" not in feed:
                feed.pop("attention_mask", None)
            if main in feed and set(required) <= set(feed):
                yield feed


MAIN = {"input_ids", "pixel_values", "input_values", "input_features", "pixel_values_videos", "past_values"}


def _text(config: Any) -> Inputs:
    """Token ids with a padded row, for both halves of an encoder-decoder; the boxes of document models."""
    ids = torch.randint(3, VOCAB - 9, (BATCH, LENGTH))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[-1, -2:] = 0
    boxes = torch.tensor([2, 3, 9, 12]).repeat(BATCH, LENGTH, 1)
    made = {"input_ids": ids, "attention_mask": mask, "bbox": boxes}
    if getattr(config, "is_encoder_decoder", False):
        made["decoder_input_ids"] = torch.randint(3, VOCAB - 9, (BATCH, LENGTH - 2))
    return made


def _number(config: Any, *names: str, default: int) -> int:
    """The first of these fields, here or in a nested configuration."""
    inner = [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]
    for owner in (config, *inner):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
                return value[0]
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return default


def _images(config: Any, size: int | None = None) -> Tensor:
    size = size or _number(config, "image_size", "img_size", default=PIXELS)
    return torch.randn(BATCH, _number(config, "num_channels", "in_channels", default=3), size, size)


def _both(config: Any) -> Inputs:
    return {**_text(config), "pixel_values": _images(config)}


def _large(config: Any) -> Inputs:
    return {**_text(config), "pixel_values": _images(config, 2 * PIXELS)}


def _audio(config: Any) -> Inputs:
    """A waveform, and its spectrum with bins last."""
    bins = _number(
        config, "num_mel_bins", "n_mel_bins", "feature_projection_input_dim", "input_dim", default=16
    )
    made = _text(config)
    made.pop("attention_mask")
    return {
        **made,
        "input_values": torch.randn(BATCH, SAMPLES),
        "input_features": torch.randn(BATCH, FRAMES, bins),
    }


def _spectrum(config: Any) -> Inputs:
    """The spectrum with time last, as long as the positions say."""
    made = _audio(config)
    bins = made["input_features"].shape[-1]
    frames = 2 * _number(config, "max_source_positions", default=FRAMES // 2)
    return {
        **made,
        "input_features": torch.randn(BATCH, bins, frames),
        "input_values": torch.randn(BATCH, 1, SAMPLES),
    }


def _frames(config: Any) -> Inputs:
    """A clip of a few frames."""
    size = _number(config, "image_size", "crop_size", default=PIXELS)
    clip = torch.randn(BATCH, _number(config, "num_frames", "frames_per_clip", default=4), 3, size, size)
    return {**_text(config), "pixel_values": clip, "pixel_values_videos": clip}


def _series(config: Any) -> Inputs:
    """The past of a few series."""
    length = _number(config, "context_length", default=LENGTH)
    past = torch.randn(BATCH, length, _number(config, "num_input_channels", default=1))
    return {"past_values": past}


def _patches(config: Any) -> Inputs:
    """Flattened patches of one 4 x 4 grid per image, as the towers of vision-language models take them."""
    patch = _number(config, "patch_size", default=8)
    depth = _number(config, "temporal_patch_size", default=1)
    channels = _number(config, "in_channels", "num_channels", "in_chans", default=3)
    pixels = torch.randn(BATCH * 16, channels * depth * patch * patch)
    grid = torch.tensor([[1, 4, 4]] * BATCH)
    return {"hidden_states": pixels, "pixel_values": pixels, "grid_thw": grid}


FEEDS: tuple[Callable[[Any], Inputs], ...] = (
    _both,
    _text,
    _large,
    _audio,
    _spectrum,
    _frames,
    _series,
    _patches,
)
