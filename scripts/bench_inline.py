"""What validating alongside costs a whole program: each example, inline and with tunekit, in turn.

    python scripts/bench_inline.py                       # those whose packages are installed
    python scripts/bench_inline.py pytorch --repeats 5

Each run is a process of its own, with a Ray of its own, from its start to its end: imports, Ray,
training, validation. With tunekit, all settings are the defaults. Printed are the medians of the
seconds, their ratio, and the ratios of each pair; and the geometric mean of the ratios.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys

import examples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [example.name for example in examples.EXAMPLES]
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs of each")
    asked = parser.parse_args()
    ratios = []
    print(f"{'program':24} {'inline':>7} {'tunekit':>8} {'ratio':>6}  of each pair")
    for example in examples.EXAMPLES:
        if asked.names and example.name not in asked.names:
            continue
        if lacking := example.lacks():
            print(f"{example.name:24} left out: {', '.join(lacking)} is not installed")
            continue
        pairs = []
        for number in range(asked.repeats):
            # Each is the first one in turn.
            programs = example.programs if number % 2 else example.programs[::-1]
            seconds = {program.stem: examples.run(program)[1] for program in programs}
            pairs.append((seconds["inline"], seconds["with_tunekit"]))
        inline, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios.append(ours / inline)
        each = " ".join(f"{ours / inline:.2f}" for inline, ours in pairs)
        print(f"{example.name:24} {inline:7.1f} {ours:8.1f} {ratios[-1]:6.2f}  {each}", flush=True)
    if ratios:
        mean = math.exp(statistics.mean(map(math.log, ratios)))
        print(f"{'geometric mean':24} {'':7} {'':8} {mean:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
