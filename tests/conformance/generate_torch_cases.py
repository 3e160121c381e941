"""Writes what PyTorch computes for attention as .npy files and a manifest (see case_writer.py).

    python3 -m venv venv && venv/bin/pip install -r requirements-torch.txt
    venv/bin/python generate_torch_cases.py torch

The folder `torch` beside this file was made by that command and is committed, so the tests need no
PyTorch. Inputs are multiples of 1/64 below 2: float64, float32, float16 and bfloat16 hold them
exactly, so the float64 output of a case is the right answer for every element type.
"""

import argparse
import sys
import warnings

import numpy as np
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from case_writer import CaseWriter

TORCH_VERSION = "2.9.1"
WIDE = [torch.float64, torch.float32]
ALL = [torch.float64, torch.float32, torch.float16, torch.bfloat16]

# name: (batch, query heads, key/value heads, query length, key length, key dim, value dim).
# All different where the operator allows it, so that swapped axes cannot cancel.
SHAPES = {
    "cross": (2, 3, 3, 5, 7, 8, 6),
    "gqa": (2, 8, 2, 3, 9, 5, 7),
    "mqa_decode": (1, 4, 1, 1, 17, 16, 3),
    "self": (1, 2, 2, 33, 33, 8, 8),
    "long": (1, 2, 1, 4, 130, 4, 5),
}


def draw(rng, *shape):
    """Normal numbers (deviation 0.7) as multiples of 1/64, of magnitude below 2."""
    return np.clip(np.rint(rng.normal(0, 0.7, shape) * 64), -127, 127) / 64


def tensor(array, dtype):
    return torch.from_numpy(np.asarray(array)).to(dtype)


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def write_input(writer, name, array):
    array = np.asarray(array)
    writer.tensor(name, array if array.dtype == bool else array.astype(np.float16))


def write_output(writer, name, result, dtype):
    # numpy has no bfloat16; float32 holds it exactly.
    stored = result.detach().to(torch.float32 if dtype == torch.bfloat16 else dtype)
    writer.tensor(f"{name}_{name_of(dtype)}", stored.numpy())


def shape_inputs(rng):
    """{shape name: (q, k, v)}"""
    inputs = {}
    for name, (batch, heads, kv_heads, queries, keys, dim, value_dim) in SHAPES.items():
        inputs[name] = (
            draw(rng, batch, heads, queries, dim),
            draw(rng, batch, kv_heads, keys, dim),
            draw(rng, batch, kv_heads, keys, value_dim),
        )
    return inputs


def write_qkv(writer, arrays):
    for name, array in zip(("q", "k", "v"), arrays, strict=True):
        write_input(writer, name, array)


def sdpa_masks(rng, shape):
    """{mask name: (mask or None, other arguments, element types)}"""
    batch, heads, _, queries, keys, _, _ = SHAPES[shape]

    def some(*extents):
        mask = rng.random(extents) < 0.6
        mask[..., 0] = True  # no empty row, but where one is asked for
        return mask

    lengths = rng.integers(1, keys + 1, batch)
    padding = (np.arange(keys) < lengths[:, None])[:, None, None, :]
    empty_row = some(batch, 1, queries, keys)
    empty_row[0, 0, queries // 2] = False
    bias = draw(rng, 1, heads, queries, keys)
    bias[..., 1:][rng.random((1, heads, queries, keys - 1)) < 0.3] = -np.inf
    return {
        "plain": (None, {}, ALL),
        "scaled": (None, {"scale": 0.3125}, WIDE),
        "negative_scale": (None, {"scale": -0.5}, WIDE),
        "causal": (None, {"is_causal": True}, ALL),
        "keep_per_batch": (some(batch, 1, queries, keys), {}, ALL),
        "keep_per_head": (some(1, heads, queries, keys), {"scale": 0.75}, WIDE),
        "keep_padding": (padding, {}, WIDE),
        "keep_nothing_in_one_row": (empty_row, {}, ALL),
        "bias_rank_2": (draw(rng, queries, keys), {}, ALL),
        "bias_with_minus_infinity": (bias, {}, ALL),
    }


def write_sdpa(writer, rng, inputs):
    for shape, arrays in inputs.items():
        grouped = SHAPES[shape][1] != SHAPES[shape][2]
        for mask_name, (mask, arguments, dtypes) in sdpa_masks(rng, shape).items():
            writer.begin(f"sdpa.{shape}.{mask_name}", "scaled_dot_product_attention")
            write_qkv(writer, arrays)
            for key, value in arguments.items():
                writer.number(key, value)
            if mask is not None:
                write_input(writer, "attn_mask", mask)
            for dtype in dtypes:
                q, k, v = (tensor(a, dtype) for a in arrays)
                given = None
                if mask is not None:
                    given = tensor(mask, torch.bool if mask.dtype == bool else dtype)
                out = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=given, enable_gqa=grouped, **arguments
                )
                write_output(writer, "out", out, dtype)
            writer.end()


def flex_modifiers(shape):
    """{name: (numbers, score_mod, mask_mod)}; the test writes each of them again in C++."""
    _, heads, _, queries, keys, _, _ = SHAPES[shape]
    past = keys - queries
    slopes = torch.tensor([2.0 ** -(1 + h) for h in range(heads)], dtype=torch.float64)

    def softcap(score, b, h, i, j):
        return 1.5 * torch.tanh(score / 1.5)

    def alibi(score, b, h, i, j):
        return score - slopes[h].to(score.dtype) * (i + past - j).abs()

    def relative(score, b, h, i, j):
        return score + 0.0625 * (i - j) * (h + 1)

    def top_left(b, h, i, j):
        return j <= i

    def bottom_right(b, h, i, j):
        return j <= i + past

    def window(b, h, i, j):
        return (j >= i + past - 2) & (j <= i + past + 1)

    def documents(b, h, i, j):
        return (i + past) // 3 == j // 3

    def combined_score(score, b, h, i, j):
        return alibi(softcap(score, b, h, i, j), b, h, i, j)

    def combined_mask(b, h, i, j):
        return top_left(b, h, i, j - past) & (j >= i + past - 4)

    return {
        "plain": (None, None),
        "softcap": (softcap, None),
        "alibi": (alibi, None),
        "relative_bias": (relative, None),
        "causal_top_left": (None, top_left),
        "causal_bottom_right": (None, bottom_right),
        "window": (None, window),
        "documents": (None, documents),
        "softcap_alibi_causal_window": (combined_score, combined_mask),
    }


def write_flex(writer, inputs):
    for shape, arrays in inputs.items():
        batch, heads, kv_heads, queries, keys, _, _ = SHAPES[shape]
        for modifier, (score_mod, mask_mod) in flex_modifiers(shape).items():
            writer.begin(f"flex.{shape}.{modifier}", "flex_attention")
            writer.word("modifier", modifier)
            write_qkv(writer, arrays)
            for dtype in WIDE:
                q, k, v = (tensor(a, dtype) for a in arrays)
                block_mask = mask_mod and create_block_mask(
                    mask_mod, batch, heads, queries, keys, device="cpu"
                )
                out, aux = flex_attention(
                    q, k, v, score_mod=score_mod, block_mask=block_mask,
                    enable_gqa=heads != kv_heads, return_aux=AuxRequest(lse=True),
                )  # fmt: skip
                write_output(writer, "out", out, dtype)
                write_output(writer, "lse", aux.lse, dtype)
            writer.end()


def multi_head_masks(rng, batch, heads, queries, keys):
    """{name: arguments of nn.MultiheadAttention.forward}; True blocks, in both masks."""
    blocked = rng.random((queries, keys)) < 0.4
    blocked[:, 0] = False
    per_head = rng.random((batch * heads, queries, keys)) < 0.4
    per_head[..., 0] = False
    padding = np.arange(keys) >= np.array([[keys - 1 - b] for b in range(batch)])
    empty = blocked.copy()
    empty[1] = True
    causal = np.triu(np.ones((queries, keys), dtype=bool), 1)
    return {
        "plain": {},
        "blocked": {"attn_mask": blocked},
        "blocked_per_head": {"attn_mask": per_head},
        "bias": {"attn_mask": draw(rng, queries, keys)},
        "padding": {"key_padding_mask": padding},
        "causal_and_padding": {"attn_mask": causal, "key_padding_mask": padding},
        "nothing_left_in_one_row": {"attn_mask": empty},
    }


def write_multi_head(writer, rng):
    # name: (batch, heads, model dim, key input dim, value input dim, queries, keys, bias)
    layers = {
        "self": (2, 3, 12, 12, 12, 5, 5, True),
        "cross": (3, 2, 8, 8, 8, 4, 6, False),
        "other_dims": (2, 4, 8, 6, 10, 3, 7, True),
    }
    for layer_name, layer in layers.items():
        batch, heads, dim, key_dim, value_dim, queries, keys, bias = layer
        parameters = {
            "query_weight": draw(rng, dim, dim) / 2,
            "key_weight": draw(rng, dim, key_dim) / 2,
            "value_weight": draw(rng, dim, value_dim) / 2,
            "output_weight": draw(rng, dim, dim) / 2,
        }
        if bias:
            for part in ("query", "key", "value", "output"):
                parameters[f"{part}_bias"] = draw(rng, dim)
        query = draw(rng, batch, queries, dim)
        is_self = layer_name == "self"
        key = query if is_self else draw(rng, batch, keys, key_dim)
        value = query if is_self else draw(rng, batch, keys, value_dim)

        for mask_name, masks in multi_head_masks(rng, batch, heads, queries, keys).items():
            writer.begin(f"multi_head.{layer_name}.{mask_name}", "MultiheadAttention")
            writer.number("num_heads", heads)
            for name, array in {**parameters, "query": query, "key": key, "value": value}.items():
                write_input(writer, name, array)
            for name, array in masks.items():
                write_input(writer, name, array)
            for dtype in WIDE:
                module = torch.nn.MultiheadAttention(
                    dim, heads, bias=bias, kdim=key_dim, vdim=value_dim, batch_first=True
                ).to(dtype)
                load_parameters(module, parameters, dtype)
                x, y, z = (tensor(a, dtype) for a in (query, key, value))
                given = {
                    n: tensor(a, torch.bool if a.dtype == bool else dtype) for n, a in masks.items()
                }
                out, weights = module(
                    x, y, z, need_weights=True, average_attn_weights=False, **given
                )
                write_output(writer, "out", out, dtype)
                write_output(writer, "weights", weights, dtype)
            writer.end()


def load_parameters(module, parameters, dtype):
    parts = ("query", "key", "value")
    weights = [tensor(parameters[f"{p}_weight"], dtype) for p in parts]
    with torch.no_grad():
        if module.in_proj_weight is not None:
            module.in_proj_weight.copy_(torch.cat(weights))
        else:
            module.q_proj_weight.copy_(weights[0])
            module.k_proj_weight.copy_(weights[1])
            module.v_proj_weight.copy_(weights[2])
        module.out_proj.weight.copy_(tensor(parameters["output_weight"], dtype))
        if module.in_proj_bias is not None:
            biases = [tensor(parameters[f"{p}_bias"], dtype) for p in parts]
            module.in_proj_bias.copy_(torch.cat(biases))
            module.out_proj.bias.copy_(tensor(parameters["output_bias"], dtype))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where to write; made if missing")
    folder = parser.parse_args().folder
    version = torch.__version__.partition("+")[0]
    if version != TORCH_VERSION:
        sys.exit(f"needs torch {TORCH_VERSION}, found {version}")
    warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
    torch.manual_seed(0)  # MultiheadAttention draws weights before they are replaced
    torch.set_num_threads(1)

    writer = CaseWriter(f"torch-{version}")
    rng = np.random.default_rng(20240607)
    inputs = shape_inputs(rng)
    write_sdpa(writer, rng, inputs)
    write_flex(writer, inputs)
    write_multi_head(writer, rng)
    writer.finish(folder)


if __name__ == "__main__":
    main()
