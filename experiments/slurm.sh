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
# WEIGHTS  for `nodes`: a folder that all nodes see, for new weights; each run at work needs one of its own
# MODEL    for `nodes`: the checkpoint that the servers start from
#
# PORT     for `nodes`: of the first server of a node (default 30000); the others follow
# START_S  for `nodes`: seconds in which all servers must answer before the trainers start (default 1800)
# RESTART_S, LOOK_S  for `nodes`: seconds between two looks or starts (default 5), and for an answer (default 20)
#
# In `nodes` a server that ends is started again, unless it ended three times in a row within five minutes of its start.
# One whose HTTP process hangs (no answer to /model_info three times within 20 s) is killed first; SGLang's own watchdog
# ends one whose scheduler hangs. The trainer gives it the current weights before it serves. See server-*.log.
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
    weights=${WEIGHTS:?a folder that all nodes see} model=${MODEL:?a folder that all nodes see} port=${PORT:-30000}
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    training=${TRAINERS:-$(((${#hosts[@]} + 1) / 2))}
    serving=$((${#hosts[@]} - training))
    if [ "$serving" -lt 1 ]; then
      echo "The layout 'nodes' needs a node for servers: sbatch --nodes=$((training + 1)) ..." >&2
      exit 2
    fi
    train_on=$(join "${hosts[@]:0:training}") serve_on=$(join "${hosts[@]:training}") urls=()
    for host in "${hosts[@]:training}"; do
      for ((gpu = 0; gpu < gpus; gpu++)); do urls+=("http://$host:$((port + gpu))"); done
    done
    # shellcheck disable=SC2016  # the remote shell expands it
    srun --overlap --nodes="$serving" --ntasks="$serving" --ntasks-per-node=1 --nodelist="$serve_on" \
      --output="server-%N.log" bash -c '
        answers() {
          (exec 3<>"/dev/tcp/127.0.0.1/$1" && printf "GET /model_info HTTP/1.0\r\n\r\n" >&3 &&
            read -r -t "${LOOK_S:-20}" _ <&3) 2>/dev/null
        }
        look() { # at server $1 on port $2, once it has answered, until it hangs
          until answers "$2"; do sleep "${RESTART_S:-5}"; done
          for ((misses = 0; misses < 3; )); do
            sleep "${RESTART_S:-5}"
            if answers "$2"; then misses=0; else ((++misses)); fi
          done
          echo "The server on port $2 hangs, and is killed."
          kill -9 "$1"
        }
        serve() {
          local gpu=$3 port=$(($4 + $3)) early=0
          while ((early < 3)); do
            SECONDS=0
            CUDA_VISIBLE_DEVICES=$gpu "$1" -m sglang.launch_server --model-path "$2" --host 0.0.0.0 \
              --port "$port" --skip-tokenizer-init --context-length 32006 --dtype bfloat16 --enable-fp32-lm-head &
            local server=$!
            look "$server" "$port" &
            wait "$server"
            echo "The server on GPU $gpu ended with code $? after $SECONDS s."
            kill $! 2>/dev/null
            early=$((SECONDS < 300 ? early + 1 : 0))
            sleep "${RESTART_S:-5}"
          done
          echo "The server on GPU $gpu ended three times within five minutes of its start; it is not started again."
        }
        for ((gpu = 0; gpu < $2; gpu++)); do serve "$0" "$1" "$gpu" "$3" & done
        wait' "$sglang" "$model" "$gpus" "$port" &
    servers=$!
    trap 'kill "$servers" 2>/dev/null || true' EXIT
    health='import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/health", timeout=10)'
    for url in "${urls[@]}"; do
      until "$python" -c "$health" "$url" 2>/dev/null; do
        kill -0 "$servers" 2>/dev/null || { echo "The servers ended: see server-*.log." >&2; exit 1; }
        if ((SECONDS >= ${START_S:-1800})); then
          echo "The server at $url did not answer within ${START_S:-1800} s: see server-*.log, or set START_S." >&2
          exit 1
        fi
        sleep "${RESTART_S:-5}"
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
