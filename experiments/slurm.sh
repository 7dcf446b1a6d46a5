#!/usr/bin/env bash
# One run on several nodes under Slurm, one trainer process a node; the same command continues it.
#
#   sbatch --nodes=2 experiments/slurm.sh LAYOUT +experiment=hle model.path=/shared/Qwen3-8B ...
#
# LAYOUT   shared    every node: the trainer on its 8 GPUs and a server on each of them, in turns
#          separate  every node: the trainer on GPUs 0-3, a server on each of GPUs 4-7
#          nodes     the first TRAINERS nodes (default: half) train, the others serve on all their GPUs
#
# PYTHON   interpreter of the trainer (default .venv/bin/python); SGLANG_PYTHON: of SGLang (.venv-sglang/bin/python)
# GPUS     of a node (default 8)
# WEIGHTS  for `nodes`: a folder that all nodes see, for new weights
# MODEL    for `nodes`: the checkpoint that the servers start from
#
# In `nodes` a server that ends is started again, unless it ended three times in a row within five minutes of its start.
# The trainer gives it the current weights before it serves.
#
#SBATCH --job-name=orchestra_jax
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --open-mode=append
# Five minutes before the time is up: as Ctrl-C or SIGTERM, which saves and ends after the step under way, or without it
# where it takes longer than checkpoint.grace_s.
#SBATCH --signal=INT@300
set -euo pipefail

layout=${1:?shared, separate or nodes}
shift
python=${PYTHON:-.venv/bin/python} sglang=${SGLANG_PYTHON:-.venv-sglang/bin/python} gpus=${GPUS:-8}

step() { srun --kill-on-bad-exit=1 --label --ntasks-per-node=1 "$@"; } # a failing process ends the others
join() { local IFS=,; echo "$*"; }

case $layout in
  shared)
    step "$python" experiments/train.py +placement=shared_node "rollout.server.python=$sglang" "$@"
    ;;
  separate)
    # Not through srun's --export, which splits at commas.
    step env CUDA_VISIBLE_DEVICES=0,1,2,3 "$python" experiments/train.py \
      +placement=separate "rollout.server.python=$sglang" "$@"
    ;;
  nodes)
    weights=${WEIGHTS:?a folder that all nodes see} model=${MODEL:?a folder that all nodes see}
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    training=${TRAINERS:-$(((${#hosts[@]} + 1) / 2))}
    serving=$((${#hosts[@]} - training))
    if [ "$serving" -lt 1 ]; then
      echo "The layout 'nodes' needs a node for servers: sbatch --nodes=$((training + 1)) ..." >&2
      exit 2
    fi
    train_on=$(join "${hosts[@]:0:training}") serve_on=$(join "${hosts[@]:training}") urls=()
    for host in "${hosts[@]:training}"; do
      for ((gpu = 0; gpu < gpus; gpu++)); do urls+=("http://$host:$((30000 + gpu))"); done
    done
    # shellcheck disable=SC2016  # the remote shell expands it
    srun --overlap --nodes="$serving" --ntasks="$serving" --ntasks-per-node=1 --nodelist="$serve_on" \
      --output="server-%N.log" bash -c '
        serve() {
          local gpu=$3 early=0
          while ((early < 3)); do
            SECONDS=0
            CUDA_VISIBLE_DEVICES=$gpu "$1" -m sglang.launch_server --model-path "$2" --host 0.0.0.0 \
              --port $((30000 + gpu)) --skip-tokenizer-init --context-length 32006 --dtype bfloat16 \
              --enable-fp32-lm-head
            echo "The server on GPU $gpu ended with code $? after $SECONDS s."
            early=$((SECONDS < 300 ? early + 1 : 0))
            sleep "${RESTART_S:-5}"
          done
          echo "The server on GPU $gpu ended three times within five minutes of its start; it is not started again."
        }
        for ((gpu = 0; gpu < $2; gpu++)); do serve "$0" "$1" "$gpu" & done
        wait' "$sglang" "$model" "$gpus" &
    servers=$!
    trap 'kill "$servers" 2>/dev/null || true' EXIT
    health='import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/health", timeout=10)'
    for url in "${urls[@]}"; do
      until "$python" -c "$health" "$url" 2>/dev/null; do
        kill -0 "$servers" 2>/dev/null || { echo "The servers ended: see server-*.log." >&2; exit 1; }
        sleep 5
      done
    done
    step --overlap --nodes="$training" --ntasks="$training" --nodelist="$train_on" "$python" experiments/train.py \
      +placement=nodes "rollout.urls=[$(join "${urls[@]}")]" "rollout.weight_folder=$weights" "model.path=$model" "$@"
    ;;
  *)
    echo "Unknown layout '$layout': shared, separate or nodes." >&2
    exit 2
    ;;
esac
