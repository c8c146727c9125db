"""Do time and memory grow as they should with the number of images? Prints a markdown table.

python benchmarks/growth.py --counts 64,256,1024

Every line is an evaluation in a process of its own: PGD on robvit-mini-robust in batches, images of `sample`
over and over. Seconds should grow in proportion, and memory not at all, because one batch is held at a time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time

PROTOCOL = {
    "name": "growth@1",
    "about": "PGD, to see what images cost",
    "threat": {"norm": "linf", "eps": "4/255"},
}


def one(options: argparse.Namespace, count: int) -> None:
    """One evaluation; prints its seconds and the largest memory of this process as JSON."""
    import torch

    import robvit
    from robvit.evaluation.protocol import Protocol

    torch.set_num_threads(options.threads)
    sample = robvit.data.open_data("sample")
    images = sample.take([place % len(sample) for place in range(count)])
    attacks = [{"attack": "pgd", "settings": {"steps": options.steps}}]
    rules = Protocol.model_validate({**PROTOCOL, "attacks": attacks})
    model = robvit.load(options.model)
    with tempfile.TemporaryDirectory() as out:
        start, cpu = time.perf_counter(), time.process_time()
        robvit.evaluate(model, images, protocol=rules, batch=options.batch, precision="fp32", out=out)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    unit = 1 if sys.platform == "darwin" else 1024
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps({"seconds": seconds, "cpu": cpu, "memory": memory}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--counts", default="64,256,1024", help="numbers of images, separated by commas")
    parser.add_argument("--model", default="robvit-mini-robust")
    parser.add_argument("--steps", type=int, default=5, help="of PGD")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", action="store_true", help="this process does the work itself")
    options = parser.parse_args()
    counts = [int(text) for text in options.counts.split(",")]
    if options.one:
        one(options, counts[0])
        return
    print(f"`{' '.join(['python', *sys.argv])}`\n")
    print("| images | seconds | CPU seconds | CPU ms an image | peak memory, MB |\n|---|---|---|---|---|")
    for count in counts:
        given = [f"--{name}={getattr(options, name)}" for name in ("model", "steps", "batch", "threads")]
        command = [sys.executable, __file__, "--one", f"--counts={count}", *given]
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  our own file
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"| {count:,} | {found['seconds']:.1f} | {found['cpu']:.1f} | {1e3 * found['cpu'] / count:.1f} "
            f"| {found['memory'] / 1e6:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
