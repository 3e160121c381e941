"""Draws the pictures of README.md and bench/README.md from the JSON output of the benchmarks, and
writes the same numbers into the tables beside them:

    pip install -r bench/requirements.txt
    python bench/plot.py attention.json options.json --output docs/images \\
        --tables README.md bench/README.md

Where a benchmark was repeated, its median counts.
"""

import argparse
import json
import pathlib
import re

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

NAVY, TEAL, SAND, GREY = "#1f3a6e", "#3fa7a0", "#d9a441", "#9a9a9a"
plt.rcParams.update(
    {
        "svg.hashsalt": "attn",  # the same bytes for the same numbers
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "figure.dpi": 100,
    }
)


class Results:
    """Benchmarks by name."""

    def __init__(self, paths):
        self.context, self.rows = {}, {}
        for path in paths:
            content = json.loads(pathlib.Path(path).read_text())
            self.context.update(content["context"])
            rows = content["benchmarks"]
            medians = [row for row in rows if row.get("aggregate_name") == "median"]
            for row in medians or rows:
                self.rows[row["run_name"]] = row

    def milliseconds(self, name):
        """The thread's own time, whoever else used the machine."""
        row = self.rows[name]
        return row["cpu_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1}[row["time_unit"]]

    def counter(self, name, counter):
        return self.rows[name][counter]

    def peak(self):
        """GFLOP/s of one core, of the widest instruction set."""
        peaks = [(r["FLOP/s"], n) for n, r in self.rows.items() if n.startswith("peak/")]
        return max(peaks)[0] / 1e9


def finish(figure, results, path):
    cpu, compiler = results.context["cpu"], results.context["compiler"]
    figure.text(
        0.995, 0.005, f"{cpu}, {compiler}", ha="right", va="bottom", fontsize=8, color="#777"
    )
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print("wrote", path)


def label_bars(axes, bars, texts):
    axes.bar_label(bars, texts, padding=3, fontsize=9)


def draw_times(axes, sizes, times, color, label, is_lowest):
    """A line over sizes, both axes logarithmic, with its numbers."""
    axes.loglog(sizes, times, "o-", color=color, label=label)
    offset = (0, -14) if is_lowest else (0, 6)
    for size, time in zip(sizes, times):
        axes.annotate(
            short(time), (size, time), offset, textcoords="offset points", ha="center", fontsize=9
        )
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.margins(x=0.14, y=0.18)
    axes.set_ylabel("ms")
    axes.grid(axis="y", color="#eee")


def short(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def draw_lengths(results, path):
    figure, axes = plt.subplots(figsize=(7.2, 4))
    lengths = [128, 256, 512, 1024, 2048, 4096]
    series = [
        ("prefill", "attn", NAVY, "o-"),
        ("prefill_causal", "attn, causal mask", TEAL, "s-"),
        ("prefill_eigen", "Eigen: product, softmax, product", SAND, "^-"),
    ]
    for name, label, color, style in series:
        rates = [results.counter(f"{name}/length:{n}", "FLOP/s") / 1e9 for n in lengths]
        axes.plot(lengths, rates, style, color=color, label=label)
    peak = results.peak()
    axes.axhline(peak, color=GREY, linestyle="--", linewidth=1)
    axes.annotate(
        "peak: multiply-adds in registers alone",
        (128, peak),
        (0, 3),
        textcoords="offset points",
        color="#777",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.set_ylim(0, 1.12 * peak)
    axes.set_xlabel("sequence length")
    axes.set_ylabel("GFLOP/s, one thread")
    axes.set_title("Self-attention, 8 heads of 64, float")
    share = axes.secondary_yaxis(
        "right", functions=(lambda y: 100 * y / peak, lambda s: s * peak / 100)
    )
    share.set_ylabel("% of peak")
    axes.legend(frameon=False, loc="lower left")
    axes.grid(axis="y", color="#eee")
    finish(figure, results, path)


def draw_heads(results, path):
    figure, (prefill, decode, cache) = plt.subplots(
        1, 3, figsize=(10, 3.8), gridspec_kw={"width_ratios": [1, 2, 1.2]}
    )
    kinds = [("MHA", 32, NAVY), ("GQA", 8, TEAL), ("MQA", 1, SAND)]
    names = [f"{kind}\n{heads}" for kind, heads, _ in kinds]
    colors = [color for _, _, color in kinds]

    times = [results.milliseconds(f"heads_prefill/kv_heads:{h}/keys:1024") for _, h, _ in kinds]
    label_bars(prefill, prefill.bar(names, times, color=colors), [short(t) for t in times])
    prefill.set_ylim(0, 1.15 * max(times))
    prefill.set_title("Prefill, 1024 tokens")
    prefill.set_ylabel("ms")
    prefill.set_xlabel("key/value heads")

    lengths = [1024, 4096, 16384]
    for kind, heads, color in kinds:
        times = [results.milliseconds(f"heads_decode/kv_heads:{heads}/keys:{n}") for n in lengths]
        draw_times(decode, lengths, times, color, kind, kind == "MQA")
    decode.set_title("Decode, one token")
    decode.set_xlabel("keys")
    decode.legend(frameon=False)

    rows = [f"heads_decode/kv_heads:{h}/keys:16384" for _, h, _ in kinds]
    sizes = [results.counter(row, "kv_bytes") / 2**20 for row in rows]
    shares = [results.counter(row, "kv_of_mha") for row in rows]
    texts = [f"{short(size)}\n(1/{1 / share:.0f})" for size, share in zip(sizes, shares)]
    label_bars(cache, cache.bar(names, sizes, color=colors), texts)
    cache.set_ylim(0, 1.2 * max(sizes))
    cache.set_title("K/V of 16384 tokens")
    cache.set_ylabel("MiB")
    cache.set_xlabel("key/value heads")
    figure.suptitle("32 query heads of 128, float, one thread", x=0.01, ha="left", fontsize=10)
    finish(figure, results, path)


def write_heads_rows(results, path):
    """Writes what draw_heads shows into the rows of a table: | label | MHA | GQA | MQA |."""
    sources = {"prefill, 1024 tokens": "heads_prefill/kv_heads:{}/keys:1024"}
    for keys in (1024, 4096, 16384):
        for label in (f"decode, {keys} keys", f"decode, one token, {keys} keys"):
            sources[label] = f"heads_decode/kv_heads:{{}}/keys:{keys}"
    text = path.read_text()
    for label, source in sources.items():
        cells = [f"{short(results.milliseconds(source.format(heads)))} ms" for heads in (32, 8, 1)]
        row = "| " + " | ".join([label, *cells]) + " |"
        text = re.sub(rf"^\| {re.escape(label)} \|.*$", row, text, flags=re.MULTILINE)
    path.write_text(text)
    print("wrote", path)


def draw_masks(results, path):
    rows = [
        ("mask_none", "no mask"),
        ("mask_causal", "causal()"),
        ("mask_window_128", "sliding_window(127, 0)"),
        ("mask_key_lengths", "key_lengths(768)"),
        ("mask_keep_where", "keep_where(1 x 1 x S x S)"),
        ("mask_add_bias", "add_bias(1 x H x S x S)"),
        ("mask_alibi", "alibi()"),
        ("mask_keep_if", "keep_if(lambda)"),
        ("mask_modify_score", "modify_score(lambda)"),
        ("option_softcap", "softcap"),
        ("option_dropout", "dropout"),
        ("option_weights", "weights returned"),
    ]
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    times = [results.milliseconds(name) for name, _ in rows]
    colors = [GREY] + [TEAL if time < times[0] else NAVY for time in times[1:]]
    bars = axes.barh([label for _, label in rows], times, color=colors)
    texts = [
        f"{short(t)} ms" + (f"  ({t / times[0]:.2f}x)" if t != times[0] else "") for t in times
    ]
    label_bars(axes, bars, texts)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(times))
    axes.set_xlabel("ms, one thread")
    axes.set_ylabel("mask or option")
    axes.set_title("Self-attention, 8 heads of 64, 1024 tokens, float")
    finish(figure, results, path)


def draw_choices(results, path):
    figure, (scores, sharing) = plt.subplots(
        1, 2, figsize=(9, 3.6), gridspec_kw={"width_ratios": [1, 1.4]}
    )
    names = ["dot_product", "cosine", "euclidean"]
    times = [results.milliseconds("score_" + name) for name in names]
    bars = scores.bar([n.replace("_", "\n") for n in names], times, color=[NAVY, TEAL, SAND])
    label_bars(scores, bars, [short(t) for t in times])
    scores.set_ylim(0, 1.15 * max(times))
    scores.set_title("Scores, 8 heads, 1024 tokens")
    scores.set_ylabel("ms")
    scores.set_xlabel("score")

    queries = [1, 16, 256]
    for name, label, color in [
        ("kv_shared", "shared", NAVY),
        ("kv_repeated", "repeated for each head", SAND),
    ]:
        times = [results.milliseconds(f"{name}/queries:{n}") for n in queries]
        draw_times(sharing, queries, times, color, label, name == "kv_shared")
    sharing.set_title("One K/V head for 16 query heads, 4096 keys")
    sharing.set_xlabel("queries")
    sharing.legend(frameon=False, title="keys and values")
    finish(figure, results, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", nargs="+", help="files of --benchmark_out")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--tables", nargs="*", type=pathlib.Path, default=[], help="Markdown files")
    arguments = parser.parse_args()
    results = Results(arguments.json)
    arguments.output.mkdir(parents=True, exist_ok=True)
    draw_lengths(results, arguments.output / "bench_lengths.svg")
    draw_heads(results, arguments.output / "bench_heads.svg")
    draw_masks(results, arguments.output / "bench_masks.svg")
    draw_choices(results, arguments.output / "bench_choices.svg")
    for path in arguments.tables:
        write_heads_rows(results, path)


if __name__ == "__main__":
    main()
