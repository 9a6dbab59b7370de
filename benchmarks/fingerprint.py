"""Whether a change left the numbers of training as they were: a hash of the weights of presets after two chunks.

    python benchmarks/fingerprint.py before.json --devices 1           # record
    python benchmarks/fingerprint.py before.json --devices 1 --check   # compare, after the change

Seed 0. Hashes hold for one kind of CPU and one jaxlib: record and compare on the same machine. Presets with cameras are
compiled with other options, so they run in a process of their own: name them alone.
"""

import argparse
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path


def fingerprint(name, devices):
    """Sorted by leaf, so that names and the order of fields play no part."""
    import jax
    import numpy as np

    from slipstream.experiment.registry import presets
    from slipstream.runs.train import trainer_of

    trainer = trainer_of(replace(presets()[name], devices=devices))
    chunk, state = trainer.compile(), trainer.start(0)
    for _ in range(2):
        state = chunk(state)[0]
    leaves = (np.ascontiguousarray(leaf) for leaf in jax.tree.leaves((state.policy, state.average)))
    digests = sorted(hashlib.sha256(leaf.tobytes()).hexdigest() for leaf in leaves)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("presets", nargs="*", help="by default all without cameras")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    from slipstream.core import device

    # Without wide vectors, so that hashes agree between CPUs with and without them.
    device.configure(args.devices, any(name.endswith("vision") for name in args.presets))
    from slipstream.experiment.registry import presets

    known = json.loads(args.file.read_text()) if args.file.exists() else {}
    wrong = 0
    for name in args.presets or [name for name in presets() if not name.endswith("vision")]:
        key, now = f"{name}/{args.devices}", fingerprint(name, args.devices)
        if args.check:
            same = known.get(key) == now
            wrong += not same
            print(f"{key:28} {'the same' if same else 'DIFFERENT' if key in known else 'not recorded'}", flush=True)
        else:
            known[key] = now
            args.file.write_text(json.dumps(known, indent=1) + "\n")
            print(f"{key:28} {now[:16]}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
