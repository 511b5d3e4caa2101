"""Run upstream's stub generator (scripts/generate_pyi.py) with the files in a fixed order.

Usage: make_stub.py GENERATOR CSRC OUTPUT. The generator walks CSRC with Path.rglob, whose order is the file system's,
and the order of the stub's functions follows it.
"""

import importlib.util
import pathlib
import sys

generator, csrc, output = sys.argv[1:]

walk = pathlib.Path.rglob
pathlib.Path.rglob = lambda self, pattern: iter(sorted(walk(self, pattern)))

sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("generate_pyi", generator)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.generate_pyi_file(name="_C", root=csrc, output_dir=output)
