"""One process of cold_start.py: runs the cases of one operation and says how long that took. Nothing of `archwright`.

    first_call.py WORKER CASES FACTS all|first

WORKER is csrc/aot, whose worker.py reads case files and models, CASES the pack's first case file, FACTS a JSON file
with {"operation", "dimensions", "tokens"}. Prints one JSON object.
"""

import json
import sys
import time
from pathlib import Path


def main():
    started = time.perf_counter()
    worker_folder, cases, facts_file, which = sys.argv[1:]
    sys.path.insert(0, worker_folder)
    import torch  # activates the pack, where there is one
    import worker

    facts = json.loads(Path(facts_file).read_text())

    torch.zeros(1, device="cuda")  # the device's own start is not what is measured
    generator = getattr(worker.load(Path(cases)), facts["operation"])(worker.Model(facts))
    prepared = ran = 0.0
    shapes = []
    while True:
        before = time.perf_counter()
        case = next(generator, None)  # imports the library, and what a model sets once
        between = time.perf_counter()
        if case is None:
            break
        shape, call = case
        call()
        torch.cuda.synchronize()
        prepared += between - before
        ran += time.perf_counter() - between
        shapes.append(shape)
        if which == "first":
            break
    total = time.perf_counter() - started
    print(json.dumps({"first": shapes[0], "cases": len(shapes), "prepared": prepared, "ran": ran, "process": total}))


if __name__ == "__main__":
    main()
