"""What is timed: the rows of the table, and the ratio that each is held to."""

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class Row:
    """One call of attention. Keys are as many as queries, or more: then one query decodes."""

    queries: int
    keys: int
    dim: int
    heads: int = 8
    kv_heads: int = 8
    causal: bool = False
    dtype: str = "float32"
    batch: int = 1

    @property
    def sizes(self):
        return (self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.dim)

    @property
    def is_decode(self):
        return self.queries == 1

    @property
    def kind(self):
        if self.kv_heads == self.heads:
            return "MHA"
        group = self.heads // self.kv_heads
        return f"MQA-{group}" if self.kv_heads == 1 else f"GQA-{group}"

    @property
    def name(self):
        dtype = "" if self.dtype == "float32" else " bf16"
        if self.is_decode:
            return f"decode{dtype} {self.kind} {self.keys} keys"
        causal = " causal" if self.causal else ""
        return f"prefill{dtype} D {self.dim} S {self.queries}{causal}"

    @property
    def order(self):
        """In the table."""
        decode = (self.is_decode, -self.kv_heads)
        return (self.dtype != "float32", *decode, self.dim, self.keys, self.causal)

    def kv_bytes(self):
        size = 4 if self.dtype == "float32" else 2
        return 2 * size * self.batch * self.kv_heads * self.keys * self.dim

    @property
    def rival(self):
        """Whom the floor is about; None: the best peer of the row."""
        return None if self.dtype == "float32" else "PyTorch"

    def floor(self):
        """How many times our time the rival should take at least; None: nothing is promised."""
        if self.is_decode:
            return self._decode_floor()
        if self.dtype != "float32":
            return 2.0
        if not self.causal:
            return 1.2 if self.queries <= 128 else 1.1
        if self.queries <= 1024:
            return 1.5
        return 1.3 if self.dim <= 64 else 1.15

    def _decode_floor(self):
        if self.dtype != "float32":
            return None
        if self.kv_heads < self.heads:
            return 6.0 if self.kv_heads == 1 else 3.0
        if self.keys < 4096:
            return None
        return 1.1 if self.kv_bytes() <= last_level_cache_bytes() else 0.97


def last_level_cache_bytes():
    caches = pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = [text.read_text().strip() for text in caches]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes), default=0)


def prefill(dim, length, causal, **others):
    return Row(length, length, dim, causal=causal, **others)


def decode(kv_heads, keys, **others):
    return Row(1, keys, 128, heads=32, kv_heads=kv_heads, **others)


# A group is what one process measures: short, so that many fresh ones can be had.
GROUPS = {
    "prefill-short": [
        prefill(dim, length, causal)
        for dim in (64, 128)
        for length in (128, 1024)
        for causal in (False, True)
    ],
    "prefill-4096-d64": [prefill(64, 4096, False)],
    "prefill-4096-d64-causal": [prefill(64, 4096, True)],
    "prefill-4096-d128": [prefill(128, 4096, False)],
    "prefill-4096-d128-causal": [prefill(128, 4096, True)],
    "decode-mha": [decode(32, 1024), decode(32, 4096)],
    "decode-mha-long": [decode(32, 16384)],
    "decode-gqa": [decode(8, keys) for keys in (1024, 4096, 16384)],
    "decode-mqa": [decode(1, keys) for keys in (1024, 4096, 16384)],
    "decode-65536": [decode(kv_heads, 65536) for kv_heads in (8, 1)],
    "bf16": [
        prefill(dim, 1024, causal, dtype="bfloat16")
        for dim in (64, 128)
        for causal in (False, True)
    ],
    "bf16-decode": [decode(kv_heads, 4096, dtype="bfloat16") for kv_heads in (32, 8, 1)],
    "threads-short": [
        prefill(64, length, causal) for length in (512, 1024) for causal in (False, True)
    ],
    "threads-4096": [prefill(64, 4096, False)],
    "threads-4096-causal": [prefill(64, 4096, True)],
}


def threads_of(group):
    return 2 if group.startswith("threads") else 1
