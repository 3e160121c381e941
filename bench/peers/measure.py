"""One process of measurement: times attn and its peers call by call and prints JSON.

run.py starts this; by hand: python bench/peers/measure.py LIBRARY GROUP
"""

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time

from rows import GROUPS, threads_of

SECONDS = 0.2  # of calls, for each implementation, row and process
CALLS = (3, 100)  # at least, at most
SHORT_NS = 20e6  # shorter calls run once untimed first: the others have emptied caches
PAUSE = 0.01  # seconds, with several threads: by then the others' threads have stopped spinning,
AWAKE = 0.02  # and by then ours have been given a core each
CHECKED_QUERIES = 64  # rows a head, held against double


def limit_threads(threads):
    """Before anything is imported that starts threads."""
    cpus = sorted(os.sched_getaffinity(0))[-threads:]
    os.sched_setaffinity(0, cpus)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"):
        os.environ[name] = str(threads)
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"


def first_line(error):
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:200]


def load(library, threads):
    """The implementations by name, and why others are missing."""
    import peers

    loaded, missing = {}, {}
    ours = peers.Attn(threads, library)
    loaded[ours.name] = ours
    for peer in peers.PEERS:
        try:
            loaded[peer.name] = peer(threads)
        except Exception as error:
            missing[peer.name] = first_line(error)
    return loaded, missing


def make_inputs(row, seed):
    import ml_dtypes
    import numpy as np

    random_numbers = np.random.default_rng(seed)
    dtype = np.float32 if row.dtype == "float32" else ml_dtypes.bfloat16
    shapes = [(row.heads, row.queries)] + 2 * [(row.kv_heads, row.keys)]
    return [
        random_numbers.standard_normal((row.batch, *shape, row.dim), np.float32).astype(dtype)
        for shape in shapes
    ]


def exact_rows(row, q, k, v):
    """Some queries' indices, spread evenly, and their outputs in double, by the book."""
    import numpy as np

    indices = np.unique(np.linspace(0, row.queries - 1, CHECKED_QUERIES).astype(int))
    out = np.empty((row.batch, row.heads, len(indices), row.dim))
    hidden = np.arange(row.keys) > indices[:, None] + (row.keys - row.queries)
    for batch in range(row.batch):
        for head in range(row.heads):
            shared = head // (row.heads // row.kv_heads)
            scores = q[batch, head, indices].astype(float) @ k[batch, shared].astype(float).T
            scores /= np.sqrt(row.dim)
            if row.causal:
                scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            out[batch, head] = weights @ v[batch, shared].astype(float)
    return indices, out


def tolerance(row):
    """Of |out - exact| / |exact|, norms over all outputs."""
    if row.dtype == "bfloat16":
        return 4 * 2**-9  # scores, weights, the sum's parts and the output, each rounded once
    # Rounding errors of sums of dim and keys terms, of random sign; a few more for exp and scale.
    return 2**-23 * (row.dim**0.5 + row.keys**0.5 + 8)


def relative_error(out, exact):
    import numpy as np

    return float(np.linalg.norm(out.astype(float) - exact) / np.linalg.norm(exact))


def timed(run):
    begin = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - begin


def calls_of(nanoseconds):
    """How often a call that takes this long is timed."""
    return min(max(round(SECONDS * 1e9 / nanoseconds), CALLS[0]), CALLS[1])


def wake_threads(run):
    time.sleep(PAUSE)
    end = time.perf_counter() + AWAKE
    while time.perf_counter() < end:
        run()


def time_in_turns(calls, threads):
    """Nanoseconds of each call, by name. In every turn each runs once, in random order; one that
    takes far longer than others sits out turns, evenly."""
    first = {name: timed(call.run) for name, call in calls.items()}
    turns = max(map(calls_of, first.values()))
    pause = {name: turns // calls_of(first[name]) for name in calls}
    times = {name: [] for name in calls}
    names = list(calls)
    gc.collect()
    gc.disable()
    for turn in range(turns):
        random.shuffle(names)
        for name in names:
            if turn % pause[name] != 0:
                continue
            call = calls[name]
            if call.rewind:
                call.rewind()
            if threads > 1:
                wake_threads(call.run)
            elif call.rewind or first[name] < SHORT_NS:
                call.run()
            times[name].append(timed(call.run))
    gc.enable()
    return times


def measure(row, implementations, threads, seed):
    q, k, v = make_inputs(row, seed)
    calls, missing = {}, {}
    for name, implementation in implementations.items():
        try:
            call = implementation.prepare(row, q, k, v)
            call.run()
            calls[name] = call
        except Exception as error:
            missing[name] = first_line(error)
    times = time_in_turns(calls, threads)

    results = {name: call.output().astype("float32") for name, call in calls.items()}
    indices, exact = exact_rows(row, q, k, v)
    errors = {name: relative_error(out[:, :, indices], exact) for name, out in results.items()}
    from_ours = {name: relative_error(out, results["attn"]) for name, out in results.items()}
    limit = tolerance(row)
    right = {n for n in results if errors[n] <= limit and from_ours[n] <= 2 * limit}  # not NaN
    return {
        "name": row.name,
        "milliseconds": {n: statistics.median(t) / 1e6 for n, t in times.items()},
        "calls": {n: len(t) for n, t in times.items()},
        "errors": errors,
        "tolerance": limit,
        "wrong": sorted(set(results) - right),
        "missing": missing,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="the built attn_peers.so")
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    threads = threads_of(arguments.group)
    limit_threads(threads)
    random.seed(arguments.seed)
    implementations, missing = load(arguments.library, threads)
    rows = []
    for row in GROUPS[arguments.group]:
        rows.append(measure(row, implementations, threads, arguments.seed))
        print(row.name, rows[-1]["milliseconds"], file=sys.stderr)
    versions = {name: one.version() for name, one in implementations.items()}
    json.dump({"versions": versions, "missing": missing, "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
