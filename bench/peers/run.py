"""Compares attn with other runtimes on this machine, from building to the table:

    python3 -m venv build/venv && build/venv/bin/pip install -r bench/peers/requirements.txt
    build/venv/bin/python bench/peers/run.py --output build/peers.json

Every group of rows is measured in processes of its own, one after the other. The table says how
many times our time each peer takes: the ratio of the two medians in a process, and of that the
median over the processes.
"""

import argparse
import datetime
import json
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys

from rows import GROUPS, threads_of

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PRESET = "peers"


def build():
    for step in (["--preset", PRESET], ["--build", "--preset", PRESET]):
        subprocess.run(["cmake", *step], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ROOT / "build" / PRESET / "bench/peers/attn_peers.so"


def run_process(prefix, library, group, seed):
    command = [*prefix, sys.executable, HERE / "measure.py", library, group, f"--seed={seed}"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def run_rounds(arguments, library):
    """Yields, after every round of the groups, the results of all processes so far by group."""
    results = {group: [] for group in arguments.groups}
    for process in range(arguments.processes):
        for group in arguments.groups:
            print(f"round {process + 1} of {arguments.processes}: {group}", file=sys.stderr)
            results[group].append(run_process(arguments.prefix, library, group, process))
        yield results


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def over_processes(rows):
    """One row of the table from the same row of every process."""
    names = rows[0]["milliseconds"]
    times = {name: [row["milliseconds"][name] for row in rows] for name in names}
    ours = times["attn"]
    ratios = {
        name: spread([peer / our for peer, our in zip(times[name], ours)])
        for name in names
        if name != "attn"
    }
    return {
        "name": rows[0]["name"],
        "milliseconds": {name: spread(values) for name, values in times.items()},
        "calls": rows[0]["calls"],
        "ratios": ratios,
        "best_peer": min(ratios, key=lambda name: ratios[name]["median"]),
        "errors": {name: max(row["errors"][name] for row in rows) for name in names},
        "tolerance": rows[0]["tolerance"],
        "wrong": sorted({name for row in rows for name in row["wrong"]}),
        "missing": rows[0]["missing"],
    }


def table_rows(results):
    table = []
    for group, processes in results.items():
        threads = threads_of(group)
        for row, measured in zip(GROUPS[group], zip(*(process["rows"] for process in processes))):
            entry = {"threads": threads, **over_processes(measured)}
            entry["floor"] = row.floor() if threads == 1 else None
            entry["rival"] = row.rival or entry["best_peer"]
            table.append(((threads, row.order), entry))
    return [entry for _, entry in sorted(table, key=lambda item: item[0])]


def cpu():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split("\t", 1) for line in lines if "\t" in line)
    fields = {name.strip(): text.lstrip("\t: ") for name, text in fields.items()}
    flags = fields["flags"].split()
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return {
        "model": f"{fields['model name']}, family {fields['cpu family']}, model {fields['model']}",
        "flags": {flag: flag in flags for flag in wanted},
    }


def commit():
    describe = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(describe, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()


def context(results):
    processes = next(iter(results.values()))
    first = processes[0]
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu(),
        "commit": commit(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "processes": len(processes),
        "versions": first["versions"],
        "missing": first["missing"],
    }


def verdict(row):
    """The floor, and whether it was missed."""
    if row["floor"] is None:
        return ""
    text = (
        f"{row['floor']} {row['rival']}" if row["rival"] != row["best_peer"] else f"{row['floor']}"
    )
    ratio = row["ratios"][row["rival"]]
    if ratio["median"] >= row["floor"]:
        return text
    return text + (" missed, in the noise" if ratio["max"] >= row["floor"] else " missed")


def cell(row, peer):
    if peer not in row["ratios"]:
        return "-"
    text = f"{row['ratios'][peer]['median']:.2f}"
    if peer in row["wrong"]:
        return text + " wrong"
    return f"**{text}**" if peer == row["best_peer"] else text


def print_table(content):
    context = content["context"]
    flags = ", ".join(
        f"{flag}: {'yes' if has else 'no'}" for flag, has in context["cpu"]["flags"].items()
    )
    print(
        f"{context['cpu']['model']} ({flags}); {context['processes']} processes; {context['date']}"
    )
    print("; ".join(f"{name} {version}" for name, version in context["versions"].items()))
    print(f"attn {context['commit']}, Python {context['python']}, {context['system']}\n")
    peers = [name for name in context["versions"] if name != "attn"]
    print("| threads | row | attn, ms |", " | ".join(peers), "| best: min to max | floor |")
    print("|" + " --- |" * (len(peers) + 5))
    for row in content["rows"]:
        best = row["ratios"][row["best_peer"]]
        cells = [str(row["threads"]), row["name"], f"{row['milliseconds']['attn']['median']:.3g}"]
        cells += [cell(row, peer) for peer in peers]
        cells += [f"{best['min']:.2f} to {best['max']:.2f}", verdict(row)]
        print("|", " | ".join(cells), "|")
    print_missing(content, peers)


def print_missing(content, peers):
    for peer, reason in content["context"]["missing"].items():
        print(f"\n{peer} is missing: {reason}")
    reasons = {}
    for row in content["rows"]:
        for peer, reason in row["missing"].items():
            reasons.setdefault((peer, reason), []).append(row["name"])
    print()
    for (peer, reason), rows in reasons.items():
        print(f"- {peer}: {reason} ({len(rows)} rows, first: {rows[0]})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, help="a JSON file for all numbers")
    parser.add_argument("--processes", type=int, default=5, help="per group of rows")
    parser.add_argument(
        "--groups", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP"
    )
    parser.add_argument(
        "--prefix", type=shlex.split, default=[], help="put before each measuring command"
    )
    arguments = parser.parse_args()
    for results in run_rounds(arguments, build()):
        content = {"context": context(results), "rows": table_rows(results), "processes": results}
        if arguments.output:  # a run that is cut short keeps its whole rounds
            arguments.output.write_text(json.dumps(content, indent=1))
    print_table(content)


if __name__ == "__main__":
    main()
