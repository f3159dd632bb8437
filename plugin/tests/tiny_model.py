"""Writes a small llama model with random weights: a real server in a second, no download.

It speaks gibberish, and is real in all else: prefill, KV cache, slots, cancel, log.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import gguf
import numpy

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
EOS = 2


def _vocabulary() -> list[tuple[str, int]]:
    special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    byte = [(f"<0x{value:02X}>", BYTE) for value in range(256)]
    space = "\N{LOWER ONE EIGHTH BLOCK}"
    printable = [space, *map(chr, range(33, 127))]
    pairs = ["".join(pair) for pair in itertools.product("abcdefghijklmnopqrstuvwxyz", "aeiost")]
    words = [
        space + word
        for word in [
            "the",
            "of",
            "and",
            "to",
            "in",
            "is",
            "you",
            "that",
            "it",
            "he",
            "was",
            "for",
            "on",
            "are",
        ]
    ]
    ends = [mark + space for mark in ".!?"]
    wide = ["é", "你", "🙂"]
    texts = dict.fromkeys([*printable, *pairs, *words, *ends, *wide])
    return [*special, *byte, *((text, NORMAL) for text in texts)]


def write(path: Path, *, layers: int = 2, width: int = 64, heads: int = 4) -> Path:
    """Write the model. More layers and width make it slower: 8 and 512 are about 1,000 tokens
    a second in prefill and 100 in generation on two cores, 2 and 64 about twenty times that."""
    vocabulary = _vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-random")
    writer.add_context_length(32768)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(len(vocabulary))
    writer.add_file_type(1)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_scores([-float(rank) / 10 for rank in range(len(vocabulary))])
    writer.add_token_types([kind for _, kind in vocabulary])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
    random = numpy.random.default_rng(1)

    def weights(*shape: int, scale: float = 0.05) -> numpy.ndarray:
        return (random.standard_normal(shape) * scale).astype(numpy.float16)

    ones = numpy.ones(width, numpy.float32)
    output = weights(len(vocabulary), width)
    # Control and byte tokens get a score of 0 always, which is never among the 40 best: the
    # answer has no early end and no half characters.
    output[: 3 + 256] = 0
    writer.add_tensor("token_embd.weight", weights(len(vocabulary), width, scale=1.0))
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(layers):
        block = f"blk.{layer}."
        writer.add_tensor(block + "attn_norm.weight", ones)
        writer.add_tensor(block + "ffn_norm.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{block}{name}.weight", weights(width, width))
        for name in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"{block}{name}.weight", weights(2 * width, width))
        writer.add_tensor(block + "ffn_down.weight", weights(width, 2 * width))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
