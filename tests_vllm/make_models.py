"""Writes small models with random weights into a folder: a Llama, a wide one, one with a latent KV cache. Run by .vllm.

They speak no language, but they are real: a tokenizer, a chat template with tools, and shapes that split in two. The
wide one has 102 million parameters, so that reading its weights takes longer than all that a server does around it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

MARKS = ["<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<tool_call>", "</tool_call>"]
TEXT = [
    "A router reads what is asked and picks the server that can hold it. One of them is near, another is quick.",
    json.dumps({"name": "get_weather", "arguments": {"city": "Paris", "days": 3}, "sunny": True}),
]
TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | tojson }}</s>{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """512 tokens: all bytes, the marks, and pieces of the text above."""
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False)
    plain.train_from_iterator(TEXT * 50, trainer)
    words = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    words.chat_template = TEMPLATE
    return words


def main(folder: Path) -> None:
    """Write all of them."""
    torch.manual_seed(0)
    words = tokenizer()
    any_size = {
        "vocab_size": len(words), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "max_position_embeddings": 2048, "tie_word_embeddings": False,
    }  # fmt: skip
    tiny = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, **any_size}
    wide = {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        **any_size,
    }
    latent = {
        "num_key_value_heads": 4, "kv_lora_rank": 512, "q_lora_rank": 64, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 64,
    }  # fmt: skip
    shapes: dict[str, PretrainedConfig] = {
        "llama": LlamaConfig(num_key_value_heads=2, head_dim=32, **tiny),
        "wide": LlamaConfig(num_key_value_heads=8, head_dim=64, **wide),
        "mla": DeepseekV3Config(**latent, **tiny),
    }
    for name, shape in shapes.items():
        AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).save_pretrained(folder / name)
        words.save_pretrained(folder / name)
    # vLLM makes the bias of the router's scores, which the weights have, only for a model that says this.
    config = folder / "mla" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"topk_method": "noaux_tc"}))
    (folder / "ready").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
