#!/usr/bin/env python3
"""Holds one version of attn against another: the same bits, and at what speed?

    bench/compare/run.py OLD [NEW] [--only bits|speed]

OLD and NEW are commits, or folders that hold include/; NEW is this checkout unless it is given. Each
version is compiled with the programs of this folder, under build/compare, once for each state of its
headers. OLD and OLD again tells how much noise the speeds have.
"""

import argparse
import hashlib
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BITS = ["bits", "draw", "tensors", "caches", "layers", "errors"]
SIDE_FLAGS = ["-fPIC", "-shared", "-fvisibility=hidden", "-fno-gnu-unique", "-Wl,-Bsymbolic"]


def digest_of(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else str(part).encode())
    return digest.hexdigest()[:16]


class Version:
    """One version's headers, copied, and what is compiled with them."""

    def __init__(self, name, compiler):
        with tempfile.TemporaryDirectory() as folder:
            self.export(name, pathlib.Path(folder))
            headers = sorted(pathlib.Path(folder, "include").rglob("*.*"))
            digest = digest_of(compiler, *(part for file in headers for part in
                                           (file.relative_to(folder), file.read_bytes())))
            self.folder = ROOT / "build" / "compare" / digest
            if not self.folder.exists():
                shutil.copytree(folder, self.folder)
        self.command = ["nice", *compiler, "-std=c++17", f"-I{self.folder / 'include'}",
                        "-isystem", "/usr/include/eigen3"]

    @staticmethod
    def export(name, folder):
        if pathlib.Path(name, "include").is_dir():
            shutil.copytree(pathlib.Path(name, "include"), folder / "include")
            return
        archive = subprocess.run(["git", "-C", ROOT, "archive", name, "include"], check=True,
                                 stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive)

    def make(self, name, suffix, sources, arguments):
        """Compiles `sources`, unless that has been done."""
        digest = digest_of(*(source.read_bytes() for source in sources), *arguments)
        path = self.folder / f"{name}-{digest}{suffix}"
        if not path.exists():
            print(f"compiling {path.relative_to(ROOT)}", file=sys.stderr, flush=True)
            partial = path.with_name("partial-" + path.name)
            inputs = [source for source in sources if source.suffix != ".hpp"]
            subprocess.run([*self.command, *inputs, *arguments, "-o", partial], check=True)
            partial.rename(path)
        return path

    def bits(self):
        objects = [self.make(name, ".o", [HERE / f"{name}.cpp", HERE / "draw.hpp"], ["-c"])
                   for name in BITS]
        return self.make("bits", "", objects, ["-pthread"])

    def side(self):
        return self.make("side", ".so", [HERE / "side.cpp", HERE / "side.hpp"],
                         [*SIDE_FLAGS, "-pthread"])

    def speed(self):
        return self.make("speed", "", [HERE / "speed.cpp", HERE / "side.hpp"], ["-ldl"])


def listing(program, calls, first):
    run = subprocess.run([program, str(calls), str(first)], stdout=subprocess.PIPE, text=True)
    lines = run.stdout.splitlines()
    if run.returncode != 0 or len(lines) != calls:
        print(f"{program} ended after {len(lines)} of {calls} calls, with {run.returncode}")
    return lines


def compare_bits(old, new, calls, first, shown):
    """Prints the lines that differ; returns whether there are none."""
    lines = [listing(version.bits(), calls, first) for version in (old, new)]
    pairs = [(a, b) for a, b in zip(*lines) if a != b]
    # An error has the same class, and says it in other words.
    texts = [pair for pair in pairs if pair[0].split()[:3] == pair[1].split()[:3]]
    results = [pair for pair in pairs if pair not in texts]
    for a, b in [*results, *texts][:shown]:
        print(f"- {a}\n+ {b}")
    if len(pairs) > shown:
        print(f"... and {len(pairs) - shown} more")
    print(f"{len(lines[0])} calls, {len(results)} differ"
          + (f", {len(texts)} in the text of an error alone" if texts else ""))
    return not pairs and len(lines[0]) == len(lines[1]) == calls


def compare_speed(old, new, processes, cases, prefix):
    """Prints a table: the times of both, medians over the processes, and their ratio."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        # Copies: the loader takes one file for one library, whatever it is called with.
        sides = [shutil.copy(version.side(), f"{folder}/{name}.so")
                 for version, name in ((old, "old"), (new, "new"))]
        for process in range(processes):
            command = [*prefix, old.speed(), *sides, str(process), cases]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            for line in run.stdout.splitlines():
                name, *numbers = line.split("\t")
                rows.setdefault(name, []).append([float(number) for number in numbers])
    print(f"{'':34}{'old us':>11}{'new us':>11}  new/old    of processes  of minima")
    for name, results in rows.items():
        old_time, new_time, old_least, new_least = zip(*results)
        ratios = [new / old for old, new in zip(old_time, new_time)]
        least = min(new_least) / min(old_least)
        print(f"{name:34}{statistics.median(old_time):11.2f}{statistics.median(new_time):11.2f}"
              f"{statistics.median(ratios):9.3f}    {min(ratios):.3f}-{max(ratios):.3f}{least:10.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default=str(ROOT))
    parser.add_argument("--only", choices=["bits", "speed"])
    parser.add_argument("--compiler", type=shlex.split, default=["c++", "-O2"],
                        help="the compiler and its options (default: c++ -O2)")
    parser.add_argument("--calls", type=int, default=2000, help="how many random calls")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--shown", type=int, default=20, help="how many differences are printed")
    parser.add_argument("--processes", type=int, default=3, help="that measure, one by one")
    parser.add_argument("--cases", default="", help="measures those whose name holds this text")
    parser.add_argument("--prefix", type=shlex.split, default=[],
                        help="stands before every measuring command")
    arguments = parser.parse_args()
    old, new = (Version(name, arguments.compiler) for name in (arguments.old, arguments.new))
    same = True
    if arguments.only != "speed":
        same = compare_bits(old, new, arguments.calls, arguments.first, arguments.shown)
    if arguments.only != "bits":
        compare_speed(old, new, arguments.processes, arguments.cases, arguments.prefix)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
