#!/usr/bin/env python3
"""What a call of attn costs to compile, as a multiple of what Eigen/Core and one product cost.

    python3 bench/compile_cost.py [--runs N] [compiler and options]...     default: c++ -O2

Prints, for a file with one call, by attention.hpp and by attn.hpp: seconds, ratio, bytes of code;
what each further call with another mask adds; and where the seconds of one call go. Seconds are
processor time of the compiler and all it starts, the least of N runs (5) of all files in turn: other
programs on the machine only add to it. Eigen is looked for in /usr/include/eigen3; -I options of the
command line come first.
"""

import os
import pathlib
import platform
import subprocess
import sys
import tempfile

EIGEN = """#include <Eigen/Core>
void multiply(const Eigen::MatrixXf& a, const Eigen::MatrixXf& b, Eigen::MatrixXf& c) {
  c.noalias() = a * b;
}
"""

# Another mask each, beside the first call's causal().
MASKS = {
    "no_mask": "attn::no_mask()",
    "sliding_window": "attn::sliding_window(127, 0)",
    "key_lengths": "attn::key_lengths(7)",
    "alibi": "attn::alibi()",
    "keep_where": "attn::keep_where(attn::Tensor4<const bool>())",
    "add_bias": "attn::add_bias(attn::Tensor4<const float>())",
    "keep_if": "attn::keep_if([](attn::ScorePosition at) { return at.key % 2 == 0; })",
    "first_keys | sliding_window": "attn::first_keys(4) | attn::sliding_window(127, 0)",
    "same_segment": "attn::same_segment(attn::Tensor4<const std::int32_t>())",
    "causal() & key_lengths": "attn::causal() & attn::key_lengths(7)",
}

COPIES = ("sse2", "avx2", "avx512") if platform.machine() in ("x86_64", "AMD64") else ("generic",)


def calls(header, masks):
    """A file with one function for each mask, which makes a call with it."""
    text = f'#include "attn/{header}"\n'
    for i, mask in enumerate(masks):
        text += f"""void attend_{i}(attn::Tensor4<const float> q, attn::Tensor4<const float> k,
    attn::Tensor4<const float> v, attn::Tensor4<float> out) {{
  attn::scaled_dot_product_attention(q, k, v, out, {mask});
}}
"""
    return text


def tables(copies):
    """A file with the kernels of float of some copies (see micro_kernels.hpp)."""
    text = '#include "attn/config.hpp"\n#include "attn/detail/kernels/micro_kernels.hpp"\n'
    for copy in copies:
        text += f"""const void* table_{copy}() {{
  return &attn::detail::kernels_{copy}::Copy::kernels<float>();
}}
"""
    return text


def files():
    """{name: (text, options)}."""
    one = calls("attention.hpp", ["attn::causal()"])
    result = {
        "Eigen": (EIGEN, []),
        "attention.hpp": (one, []),
        "attn.hpp": (calls("attn.hpp", ["attn::causal()"]), []),
        "read Eigen/Core": ("#include <Eigen/Core>\n", ["-fsyntax-only"]),
        "read attention.hpp": ('#include "attn/attention.hpp"\n', ["-fsyntax-only"]),
        "read attn.hpp": ('#include "attn/attn.hpp"\n', ["-fsyntax-only"]),
        "check one call": (one, ["-fsyntax-only"]),
        "no kernels": (tables([]), []),
    }
    for copy in COPIES:
        result[f"kernels of {copy}"] = (tables([copy]), [])
    for name, mask in MASKS.items():
        result[f"and {name}"] = (calls("attn.hpp", ["attn::causal()", mask]), [])
    return result


def compile_seconds(command):
    """Processor time of the command and what it starts."""
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime


def code_bytes(target):
    if not target.exists():
        return 0
    lines = subprocess.run(["size", target], check=True, capture_output=True, text=True).stdout
    return int(lines.splitlines()[1].split()[0])


def measure(command, runs):
    """({name: seconds}, {name: bytes of code})."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {}
        for i, (name, (text, options)) in enumerate(files().items()):
            source = pathlib.Path(folder, f"{i}.cpp")
            source.write_text(text)
            target = source.with_suffix(".o")
            jobs[name] = ([*command, *options, "-c", str(source), "-o", str(target)], target)
        seconds = {name: float("inf") for name in jobs}
        for _ in range(runs):
            for name, (job, _) in jobs.items():
                seconds[name] = min(seconds[name], compile_seconds(job))
        return seconds, {name: code_bytes(target) for name, (_, target) in jobs.items()}


def report(seconds, size):
    eigen = seconds["Eigen"]
    print(f"{'one call':28} seconds   ratio   bytes of code")
    for name in ("Eigen", "attention.hpp", "attn.hpp"):
        print(f"{name:28} {seconds[name]:7.2f} {seconds[name] / eigen:7.2f} {size[name]:15}")

    print("\nanother call in the same file (of attn.hpp)")
    for mask in MASKS:
        name = f"and {mask}"
        more = seconds[name] - seconds["attn.hpp"]
        print(f"{name:28} {more:+7.2f} {more / eigen:+7.2f} {size[name] - size['attn.hpp']:+15}")

    print("\nwhere one call of attention.hpp spends it")
    kernels = {copy: seconds[f"kernels of {copy}"] - seconds["no kernels"] for copy in COPIES}
    stages = {"reading Eigen/Core": seconds["read Eigen/Core"],
              "reading the rest": seconds["read attention.hpp"] - seconds["read Eigen/Core"],
              "checking the call": seconds["check one call"] - seconds["read attention.hpp"]}
    stages.update({f"kernels, {copy}": time for copy, time in kernels.items()})
    stages["all else: checks, driver"] = seconds["attention.hpp"] - sum(stages.values())
    for name, time in stages.items():
        print(f"{name:28} {time:7.2f} {time / eigen:7.2f}")
    more = seconds["read attn.hpp"] - seconds["read attention.hpp"]
    print(f"{'reading all of attn.hpp':28} {more:+7.2f} {more / eigen:+7.2f}")


def main():
    arguments, runs = sys.argv[1:], 5
    if arguments[:1] == ["--runs"]:
        runs, arguments = int(arguments[1]), arguments[2:]
    include = pathlib.Path(__file__).resolve().parent.parent / "include"
    command = [*(arguments or ["c++", "-O2"]), "-std=c++17", f"-I{include}",
               "-isystem", "/usr/include/eigen3"]
    report(*measure(command, runs))


if __name__ == "__main__":
    main()
