"""Do time and memory grow as they should with the number of images?

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

from recording import Watch, add_out, finish

from robvit.progress import progress
from robvit.record import Table

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
        watch = Watch()
        robvit.evaluate(model, images, protocol=rules, batch=options.batch, precision="fp32", out=out)
        cpu, seconds = watch.read()
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
    add_out(parser)
    options = parser.parse_args()
    counts = [int(text) for text in options.counts.split(",")]
    if options.one:
        one(options, counts[0])
        return
    rows = []
    with progress("growth", total=sum(counts)) as advance:
        for count in counts:
            given = [f"--{name}={getattr(options, name)}" for name in ("model", "steps", "batch", "threads")]
            command = [sys.executable, __file__, "--one", f"--counts={count}", *given]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603  our own
            found = json.loads(done.stdout.splitlines()[-1])
            cpu, memory = found["cpu"], round(found["memory"] / 1e6)
            rows.append([count, found["seconds"], cpu, 1e3 * cpu / count, memory])
            advance(count)
    columns = ["images", "seconds", "CPU seconds", "CPU ms an image", "peak memory, MB"]
    note = f"PGD, {options.steps} steps, batches of {options.batch}, threads: {options.threads}."
    table = Table("Growth with the number of images", columns, rows, note)
    data = {"spec": "sample, over and over", "count": max(counts)}
    finish(options.out, [table], model={"name": options.model}, data=data)


if __name__ == "__main__":
    main()
