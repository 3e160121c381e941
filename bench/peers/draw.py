"""Draws README.md's picture of the peers from the numbers of run.py:

    python bench/peers/draw.py build/peers.json --output docs/images/peers.svg
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import plot  # bench/plot.py: style, and plt by way of its backend

MARKS = {
    "PyTorch": ("o", plot.SAND),
    "ORT MultiHeadAttention": ("s", plot.TEAL),
    "ORT GroupQueryAttention": ("D", plot.TEAL),
    "ORT Attention-23": ("^", plot.TEAL),
    "OpenVINO": ("v", plot.NAVY),
    "OpenVINO cache": ("P", plot.NAVY),
    "JAX": ("X", plot.GREY),
}


def draw_rows(axes, rows, title):
    for peer, (marker, color) in MARKS.items():
        points = [(row["ratios"][peer]["median"], i) for i, row in enumerate(rows) if peer in row["ratios"]]
        axes.scatter(*zip(*points), marker=marker, color=color, s=28, label=peer, zorder=3) if points else None
    axes.axvline(1, color="#b03030", linewidth=1)
    axes.axvspan(0, 1, color="#b03030", alpha=0.06, linewidth=0)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.invert_yaxis()
    axes.set_title(title)
    axes.grid(color="#eee")
