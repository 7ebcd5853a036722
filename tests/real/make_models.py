"""Writes tiny models without weights: a two-layer Qwen2, and the same with three kinds of quantization.

Run by `make_env.py` with the interpreter that has transformers and tokenizers.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config

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
"""Enough text for a byte-level tokenizer of a thousand tokens."""

WORDS = """
time year people way day man thing woman life child world school state family group country hand part place case week
company system question work number night point home water room mother area money story fact month lot right study book
eye job word business side kind head house service friend father power hour game line end member law car city name team
minute idea body back parent face level office door health person art war party change morning reason girl guy moment
"""
"""Everyday words that are to be one token each, so that prompts have exact lengths; the training repeats them."""

QUANTIZED = {
    "tiny-awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "tiny-gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    "tiny-w8a8": {
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
    },
}


def write_tokenizer(directory: Path) -> None:
    """A byte-level BPE tokenizer with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator([*TEXT, *[" " + " ".join(WORDS.split())] * 50], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)


def main() -> int:
    """Writes every model that is not there yet."""
    root = Path(sys.argv[1])
    tiny = root / "tiny"
    if not (tiny / "config.json").exists():
        tiny.mkdir(parents=True, exist_ok=True)
        write_tokenizer(tiny)
        config = Qwen2Config(
            vocab_size=1024,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            architectures=["Qwen2ForCausalLM"],
            torch_dtype="bfloat16",
        )
        config.save_pretrained(tiny)
    for name, quantization in QUANTIZED.items():
        target = root / name
        if (target / "config.json").exists():
            continue
        shutil.copytree(tiny, target, dirs_exist_ok=True)
        config = json.loads((target / "config.json").read_text())
        config["quantization_config"] = quantization
        (target / "config.json").write_text(json.dumps(config, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
