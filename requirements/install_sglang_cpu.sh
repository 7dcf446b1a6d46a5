#!/usr/bin/env bash
# Makes the environment of a CPU SGLang server, for tests: requirements/install_sglang_cpu.sh [VENV]
# Some 3 minutes and 2.5 GB. PYTHON chooses the interpreter (3.11 or newer). Again on the same VENV is harmless.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-$here/../.venv-sglang}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# Byte-compiling all 17,000 modules takes longer than compiling the third of them that a server imports, once.
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"; }
install -r "$here/sglang-cpu.txt"
install --no-deps -r "$here/sglang-cpu-no-deps.txt"
# A copy: building leaves files beside the sources.
package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
cp "$here"/sglang_torchcpu/pyproject.toml "$here"/sglang_torchcpu/*.py "$package"
install --no-deps --force-reinstall "$package"
