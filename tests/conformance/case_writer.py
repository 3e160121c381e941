"""Writes test cases as one .npy file an element type and a manifest that C++ reads word by word.

    attn-cases 1 <source>
    case <name>
    operator <name>
    number <key> <value>
    word <key> <value>
    tensor <name> <element type> <offset in elements> <rank> <extents...>
    end

<element type>.npy holds all tensors of that type one after the other; equal tensors are stored
once. .npy has no bfloat16: bfloat16.npy holds the 16 bits of each element as an unsigned integer.
"""

import pathlib

import numpy as np


class CaseWriter:
    def __init__(self, source):
        self.lines = [f"attn-cases 1 {source}"]
        self.parts = {}  # element type: arrays
        self.ends = {}  # element type: elements so far
        self.offsets = {}  # content: offset

    def begin(self, name, operator):
        self.lines += [f"case {name}", f"operator {operator}"]

    def number(self, key, value):
        self.lines.append(f"number {key} {float(value)!r}")

    def word(self, key, value):
        self.lines.append(f"word {key} {value}")

    def tensor(self, name, array):
        array = np.asarray(array)
        kind = array.dtype.name
        content = (kind, array.tobytes())
        if content not in self.offsets:
            self.offsets[content] = self.ends.get(kind, 0)
            self.ends[kind] = self.offsets[content] + array.size
            self.parts.setdefault(kind, []).append(array.ravel())
        extents = " ".join(str(n) for n in (array.ndim, *array.shape))
        self.lines.append(f"tensor {name} {kind} {self.offsets[content]} {extents}")

    def end(self):
        self.lines.append("end")

    def finish(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for kind, arrays in self.parts.items():
            whole = np.concatenate(arrays)
            np.save(folder / f"{kind}.npy", whole.view(np.uint16) if kind == "bfloat16" else whole)
        (folder / "manifest.txt").write_text("\n".join(self.lines) + "\n")
