"""The keys of a ``config.json`` that change neither weights nor KV, and the words of those that do.

Sources: the fields of ``PretrainedConfig`` and ``GenerationConfig``, which older files hold as a whole, and of the
configuration classes of the known families, in transformers 5.24; the files in PyPI aiconfigurator-core 0.12.0,
model_configs. What only one family's files say stands with the family, in ``hf``.
"""

from __future__ import annotations

import re
from typing import Literal

SHAPES = re.compile(
    r"head|expert|layer|window|chunk|lora|rank|index|linear|mamba|ssm|conv|state|kv|compress|pattern|interval|freq|size"
    r"|dim|width|hidden|moe|sparse|block|latent|share|nextn|mtp|attn|attention|router|residual|gram|memory|cache|mixer"
    r"|connection|altup|laurel|depth|repeat|loop|recur|encoder|decoder|cross|embed|table|group|stack|expan|adapter"
    r"|draft|vocab|stream|branch|channel|inner|^num_|^n_|_num_"
)
"""A key with one of these words may change a model's shape: it must be read, or be empty, or be harmless."""

HARMLESS = re.compile(
    r"^rope_|_bias$|_norm$|_(token_id|token_ids|token_index|token_indices)$"
    r"|_(dropout|dropout_prob|pdrop|eps|epsilon|dtype|act|activation|coef|coeff|noise|softcapping|init_scale|init)$"
)
"""A key of this form is harmless. Biases and norms are weights, but next to none, and are not counted."""

GENERATION = {
    "bad_words_ids", "begin_suppress_tokens", "cache_implementation", "diversity_penalty", "do_sample",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "generation_config",
    "length_penalty", "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty",
    "return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p", "use_cache",
}  # fmt: skip
"""What a generation asks for by default."""

BOOKKEEPING = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled", "_name_or_path",
    "architectures", "attn_implementation", "auto_map", "custom_pipelines", "dtype", "finetuning_task", "id2label",
    "is_decoder", "label2id", "max_seq_len", "max_sequence_length", "model_max_length", "model_type", "name_or_path",
    "num_labels", "output_attentions", "output_hidden_states", "output_router_logits", "prefix", "problem_type",
    "pruned_heads", "return_dict", "seq_length", "task_specific_params", "tf_legacy_loss", "tie_encoder_decoder",
    "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_flash_attn",
}  # fmt: skip
"""Who made the file, with what, for which task, and what a forward pass returns."""

ARITHMETIC = {
    # rotation and positions
    "initial_context_length", "mrope_section", "original_max_position_embeddings", "partial_rotary_factor",
    "position_embedding_type", "rotary_dim", "rotary_emb_base", "rotary_pct", "swa_rope_theta", "use_mrope",
    # scales, clips and the choice of experts
    "attention_multiplier", "attention_scale", "attention_value_scale", "attn_scale", "attn_temperature_tuning",
    "aux_loss_alpha", "embedding_multiplier", "floor_scale", "logit_scale", "logits_scaling", "n_group",
    "norm_topk_prob", "query_pre_attn_scalar", "residual_multiplier", "routed_scaling_factor", "scoring_func",
    "seq_aux", "swiglu_alpha", "swiglu_limit", "topk_group", "topk_method", "use_bidirectional_attention",
    # norms, biases and first values
    "initializer_range", "norm_type", "qk_norm_type", "use_bias", "use_conv_bias", "use_qk_norm", "use_routing_bias",
    # how kernels and engines compute
    "chunk_size", "chunk_size_feed_forward", "ep_size", "mamba_chunk_size", "num_logits_to_keep", "pretraining_tp",
    "use_mamba_kernels", "use_mambapy",
}  # fmt: skip
"""How a model computes, not what it keeps."""

MULTIMODAL = {
    "ignore_index", "image_grid_pinpoints", "image_placeholder", "image_seq_length", "language_model_only",
    "mm_tokens_per_image", "process_image_mode", "spatial_merge_size", "use_unified_vision_chunk", "video_placeholder",
    "vision_feature_layer", "vision_feature_select_strategy", "vision_soft_tokens_per_image",
    "audio_soft_tokens_per_image", "multimodal_projector_bias", "projector_hidden_act", "projector_hidden_size",
}  # fmt: skip
"""How pictures and sounds become tokens. Projectors are weights, but next to none, and are not counted."""

KNOWN = GENERATION | BOOKKEEPING | ARITHMETIC | MULTIMODAL

Verdict = Literal["harmless", "shapes", "strange"]


def judged(key: object) -> Verdict:
    """What a key that nobody read is by its name: harmless, about the shape, or strange."""
    if not isinstance(key, str):
        return "strange"
    if key in KNOWN or HARMLESS.search(key):
        return "harmless"
    return "shapes" if SHAPES.search(key) else "strange"
