"""How far our logits are from transformers' on the same random weights, for every family; needs torch.

python -m benchmarks.parity [CASE ...]
"""

import argparse
import tempfile
from pathlib import Path

import transformers

from benchmarks.short import parse
from tests.models.test_families_transformers import CASES, parity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help=f"of {', '.join(CASES)}")
    given = parse(parser, "qwen3")
    if unknown := sorted(set(given.cases) - set(CASES)):
        parser.error(f"there is no case {unknown[0]}: choose of {', '.join(CASES)}")
    print(f"Largest differences from transformers {transformers.__version__} in fp32, 2 rows of 24 tokens\n")
    print("| case | class | heads x size | hidden | RoPE | head | layers | largest logit | full | cached | read back |")
    print("| --- " * 11 + "|")
    for name in given.cases:
        kind, (heads, kv_heads, head_dim, hidden), tied, scan, fields = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            found = parity(name, Path(folder))
        rope = fields["rope_parameters"]["rope_type"]
        shape = f"{heads}/{kv_heads} x {head_dim} | {hidden} | {rope}"
        built = f"{'tied' if tied else 'own'} | {'scanned' if scan else 'unrolled'}"
        figures = " | ".join(f"{value:.1e}" for value in found[1:])
        print(f"| {name} | {kind} | {shape} | {built} | {found.largest:.1f} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
