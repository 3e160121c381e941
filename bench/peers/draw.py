"""Draws README.md's picture of the peers from the numbers of run.py:

    python bench/peers/draw.py build/peers.json --output docs/images/peers.svg

Left of the red line attn loses.
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import plot  # bench/plot.py: the style of all pictures

MARKS = {
    "PyTorch": ("o", plot.SAND),
    "ORT MultiHeadAttention": ("s", plot.TEAL),
    "ORT GroupQueryAttention": ("D", plot.TEAL),
    "ORT Attention-23": ("^", plot.TEAL),
    "OpenVINO": ("v", plot.NAVY),
    "OpenVINO cache": ("P", plot.NAVY),
    "JAX": ("X", plot.GREY),
}
LOSS = "#b03030"
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)


def panels(rows):
    """Title and rows of each part of the picture."""
    one_thread = [row for row in rows if row["threads"] == 1]
    several = [row for row in rows if row["threads"] > 1]
    return [
        ("Prefill, 8 heads, float", with_prefix(one_thread, "prefill D")),
        (
            "Decode, 32 query heads of 128, float",
            with_prefix(one_thread, "decode MHA", "decode GQA", "decode MQA"),
        ),
        ("bfloat16", with_prefix(one_thread, "prefill bf16", "decode bf16")),
        ("Two threads", several),
    ]


def with_prefix(rows, *prefixes):
    return [row for row in rows if row["name"].startswith(prefixes)]


def draw_panel(axes, title, rows):
    for peer, (marker, color) in MARKS.items():
        places = [place for place, row in enumerate(rows) if peer in row["ratios"]]
        ratios = [rows[place]["ratios"][peer]["median"] for place in places]
        axes.scatter(ratios, places, s=30, marker=marker, color=color, label=peer, zorder=3)
    axes.axvspan(TICKS[0] / 2, 1, color=LOSS, alpha=0.07, linewidth=0)
    axes.axvline(1, color=LOSS, linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.set_xlim(TICKS[0], TICKS[-1])
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_title(title)
    axes.grid(color="#eee")


def draw(content, path):
    shown = [(title, rows) for title, rows in panels(content["rows"]) if rows]
    heights = [len(rows) + 1.5 for _, rows in shown]
    figure, all_axes = plot.plt.subplots(
        len(shown), 1, figsize=(8, 0.24 * sum(heights) + 1), height_ratios=heights, squeeze=False
    )
    for axes, (title, rows) in zip(all_axes[:, 0], shown):
        draw_panel(axes, title, rows)
    all_axes[-1, 0].set_xlabel("a peer's time over attn's: right of 1 attn is faster")
    handles, labels = all_axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=4, frameon=False)
    context = content["context"]
    figure.text(0.995, 0.005, footer(context), ha="right", va="bottom", fontsize=8, color="#777")
    figure.tight_layout(rect=(0, 0.02, 1, 1 - 0.6 / figure.get_figheight()))
    figure.savefig(path, metadata={"Date": None})
    print("wrote", path)


def footer(context):
    versions = {name.split()[0]: version for name, version in context["versions"].items()}
    del versions["attn"]
    peers = ", ".join(f"{name} {version}" for name, version in versions.items())
    amx = "AMX" if context["cpu"]["flags"]["amx_bf16"] else "no AMX"
    return f"{context['cpu']['model']}, {amx}; {peers.replace('ORT', 'ONNX Runtime (ORT)')}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=pathlib.Path, help="what run.py wrote")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="an SVG file")
    arguments = parser.parse_args()
    draw(json.loads(arguments.json.read_text()), arguments.output)


if __name__ == "__main__":
    main()
