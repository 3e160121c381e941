"""Writes ONNX's node tests of attention as .npy files and a manifest (see case_writer.py).

    python3 -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python generate_onnx_cases.py FOLDER

ONNX has changed Attention in place several times, so the version is checked. Beside the outputs
that ONNX ships with a case, "exact_" tensors hold what ONNX's own reference gives for the same
inputs in double precision: a 16-bit case then tests more than that two roundings agree roughly.
"""

import argparse
import copy
import sys
import warnings

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

from case_writer import CaseWriter

ONNX_VERSION = "1.23.2"
CASES = {"Attention": 93, "FlexAttention": 11, "RotaryEmbedding": 8, "LinearAttention": 14}


def write_attribute(writer, attribute):
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, (int, float)):
        writer.number(attribute.name, value)
    elif isinstance(value, bytes):
        writer.word(attribute.name, value.decode())
    elif isinstance(value, onnx.GraphProto):
        # A modifier is a graph. The test has each of them by name, with its scalar constants.
        writer.word(attribute.name, value.name)
        for constant in value.initializer:
            array = onnx.numpy_helper.to_array(constant)
            if array.ndim == 0 and array.dtype.kind == "f" and np.isfinite(array):
                writer.number(f"{attribute.name}.{constant.name}", array)
    else:
        raise TypeError(f"attribute {attribute.name}: {type(value)}")


def exact_outputs(model, inputs):
    """The outputs of ONNX's reference with every floating-point input in double precision."""
    model = copy.deepcopy(model)
    node = model.graph.node[0]
    kept = [a for a in node.attribute if a.name != "softmax_precision"]
    del node.attribute[:]
    node.attribute.extend(kept)
    return ReferenceEvaluator(model).run(None, inputs)


def is_floating(array):
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where to write; made if missing")
    folder = parser.parse_args().folder
    if onnx.__version__ != ONNX_VERSION:
        sys.exit(f"needs onnx {ONNX_VERSION}, found {onnx.__version__}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # other operators overflow on purpose
        cases = collect_testcases()

    writer = CaseWriter(f"onnx-{onnx.__version__}")
    counts = dict.fromkeys(CASES, 0)
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in CASES:
            continue  # "_expanded" cases repeat a case as its graph of smaller operators
        node = nodes[0]
        counts[node.op_type] += 1
        inputs, outputs = case.data_sets[0]
        inputs = dict(zip([n for n in node.input if n], inputs, strict=True))
        outputs = dict(zip([n for n in node.output if n], outputs, strict=True))

        writer.begin(case.name, node.op_type)
        for attribute in node.attribute:
            write_attribute(writer, attribute)
        for name, array in inputs.items():
            writer.tensor(name, array)
        for name, array in outputs.items():
            writer.tensor(name, array)
        # A modifier's graph has typed constants, so it runs in its own type only.
        modified = any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute)
        if node.op_type in ("Attention", "FlexAttention") and not modified:
            wide = {n: a.astype(np.float64) if is_floating(a) else a for n, a in inputs.items()}
            for name, array in zip(outputs, exact_outputs(case.model, wide), strict=True):
                if array.dtype != np.float64:
                    raise TypeError(f"{case.name}: exact {name} is {array.dtype}")
                writer.tensor(f"exact_{name}", array)
        writer.end()

    if counts != CASES:
        sys.exit(f"expected {CASES}, collected {counts}")
    writer.finish(folder)
    print(f"{sum(counts.values())} cases written to {folder}: {counts}")


if __name__ == "__main__":
    main()
