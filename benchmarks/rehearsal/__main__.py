"""Rehearses a run on this machine: two trainers, two real SGLang servers, stand-ins for the providers, a kill.

python -m benchmarks.rehearsal
python -m benchmarks.rehearsal +experiment=hle +placement=shared --folder outputs/rehearsal-shared
python -m benchmarks.rehearsal --slow-tail --steps 14     # seconds a step without and with rollout.oversample; no kill
"""

import argparse
import sys
from pathlib import Path

from benchmarks.rehearsal.rehearsal import Rehearsal, RehearsalFailed
from benchmarks.rehearsal.slow_tail import MOST_STEPS, UNTIMED, SlowTail
from orchestra_jax.config.schema import ConfigError


def main() -> int:
    """0 if everything that the rehearsal claims holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", default=["+experiment=hle"], help="of experiments/train.py")
    parser.add_argument("--folder", type=Path, default=Path("outputs/rehearsal"))
    parser.add_argument("--slow-tail", action="store_true", help="some answers of providers take long; see above")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0, help="of who is killed and when, or of the delays")
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds for each start of the trainers")
    asked = parser.parse_args()
    if not asked.overrides[0].startswith("+experiment="):
        parser.error(f"begin with the experiment, such as +experiment=hle, not with {asked.overrides[0]}")
    if asked.slow_tail and not UNTIMED < asked.steps <= MOST_STEPS:
        parser.error(f"--slow-tail takes --steps of {UNTIMED + 1} to {MOST_STEPS}: beyond, its tasks would come again")
    try:
        rehearsal = (SlowTail if asked.slow_tail else Rehearsal)(
            asked.overrides, asked.folder, steps=asked.steps, seed=asked.seed, patience_s=asked.patience
        )
        return 0 if rehearsal.rehearse() else 1
    except (ConfigError, RehearsalFailed) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
