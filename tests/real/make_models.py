"""Writes toy models without weights: two sizes of Qwen2, and some of them with quantization.

Run by `make_env.py` with the interpreter that has transformers and tokenizers.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config

# This interpreter has vLLM and not vtop; the module needs nothing but Python.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tui"))
from vtop.load.words import COMMON_WORDS

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TEXT = [
    "A server reads its weights from memory once for every token that it writes.",
    "Requests that arrive together are decoded together, and leave when they are done.",
    "The first token waits for the prompt; the others wait for memory.",
    "Numbers: 0 1 2 3 4 5 6 7 8 9 10 20 30 40 50 60 70 80 90 100 200 300 400 500.",
    "What is said once may be remembered; what is remembered need not be computed again.",
]
"""Enough text for a byte-level tokenizer."""

SIZES = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
    # Large enough that prefill and weights cost more than the host's work for a step, so that comparisons see them.
    "small": {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
    },
}

W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}

QUANTIZED = {
    "tiny-awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "tiny-gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    "tiny-w8a8": W8A8,
    "small-w8a8": W8A8,
}


def write_tokenizer(directory: Path) -> None:
    """A byte-level BPE tokenizer with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    # Repeated, so that each word of the prompts becomes one token, and prompts have exact lengths.
    tokenizer.train_from_iterator([*TEXT, *[" " + " ".join(COMMON_WORDS)] * 50], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)


def main() -> int:
    """Writes every model that is not there yet."""
    root = Path(sys.argv[1])
    for name, size in SIZES.items():
        target = root / name
        if (target / "config.json").exists():
            continue
        target.mkdir(parents=True, exist_ok=True)
        write_tokenizer(target)
        config = Qwen2Config(
            vocab_size=1024,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            architectures=["Qwen2ForCausalLM"],
            torch_dtype="bfloat16",
            **size,
        )
        config.save_pretrained(target)
    for name, quantization in QUANTIZED.items():
        target = root / name
        if (target / "config.json").exists():
            continue
        shutil.copytree(root / name.split("-")[0], target, dirs_exist_ok=True)
        config = json.loads((target / "config.json").read_text())
        config["quantization_config"] = quantization
        (target / "config.json").write_text(json.dumps(config, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
