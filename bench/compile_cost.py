#!/usr/bin/env python3
"""How long a file takes to compile that includes attn.hpp and makes one call, against one that
includes Eigen/Core and multiplies two matrices; and how large both objects are.

    python3 bench/compile_cost.py [compiler and options]...     default: c++ -O2

Eigen is looked for in /usr/include/eigen3; -I options of the command line come first. Both files are
compiled in turn, RUNS times, and medians are compared.
"""

import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

RUNS = 5

EIGEN = """
#include <Eigen/Core>

void multiply(const Eigen::MatrixXf& a, const Eigen::MatrixXf& b, Eigen::MatrixXf& c) {
  c.noalias() = a * b;
}
"""

ATTN = """
#include "attn/attn.hpp"

void attend(attn::Tensor4<const float> q, attn::Tensor4<const float> k,
            attn::Tensor4<const float> v, attn::Tensor4<float> out) {
  attn::scaled_dot_product_attention(q, k, v, out, attn::causal());
}
"""


def compile_seconds(command, source, target):
    begin = time.perf_counter()
    subprocess.run([*command, "-c", source, "-o", target], check=True)
    return time.perf_counter() - begin


def text_bytes(target):
    lines = subprocess.run(["size", target], check=True, capture_output=True, text=True).stdout
    return int(lines.splitlines()[1].split()[0])


def main():
    include = pathlib.Path(__file__).resolve().parent.parent / "include"
    command = [*(sys.argv[1:] or ["c++", "-O2"]), "-std=c++17", f"-I{include}",
               "-isystem", "/usr/include/eigen3"]
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, text in (("Eigen", EIGEN), ("attn", ATTN)):
            source = pathlib.Path(folder, f"{name}.cpp")
            source.write_text(text)
            files[name] = (source, source.with_suffix(".o"))
        seconds = {name: [] for name in files}
        for _ in range(RUNS):
            for name, (source, target) in files.items():
                seconds[name].append(compile_seconds(command, source, target))
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        for name, (_, target) in files.items():
            print(f"{name:6} {medians[name]:6.2f} s  {text_bytes(target):8d} bytes of text")
        print(f"ratio  {medians['attn'] / medians['Eigen']:6.2f}")


if __name__ == "__main__":
    main()
