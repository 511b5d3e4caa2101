"""Runs every case of a pack's operations in one process, as a user of the libraries would: no caches, no compilers.

    every_case.py CSRC FACTS      CSRC/aot/worker.py and CSRC/<component>/<first case file> are loaded; FACTS is the
                                  JSON of component, case file, operations, dimensions and tokens

Prints the number of cases. Not a test itself: tests/test_real_packs.py starts it under strace.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    csrc, facts = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    sys.path.insert(0, str(csrc / "aot"))
    import torch  # activates the installed packs
    import worker

    cases = worker.load(csrc / facts["component"] / facts["cases"])
    model, count = worker.Model(facts), 0
    for name in facts["operations"]:
        for shape, call in getattr(cases, name)(model):
            try:
                call()
                torch.cuda.synchronize()
            except Exception as error:
                raise RuntimeError(f"{name}: {shape}") from error
            count += 1
    print(f"{count} cases")


if __name__ == "__main__":
    main()
