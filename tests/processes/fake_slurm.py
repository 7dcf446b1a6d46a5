"""A local stand-in for srun and scontrol, as `python fake_slurm.py NAME ARGUMENT...`.

srun starts a process for each node with the variables that Slurm sets, writes its command line into $FAKE_SLURM_LOG,
and with --kill-on-bad-exit ends the others when one fails. SIGTERM ends them with all their children. Every "node" is
this machine.
"""

import json
import os
import signal
import subprocess
import sys
import time


def srun(arguments: list[str]) -> int:
    options = {}
    while arguments[0].startswith("--"):
        name, _, value = arguments.pop(0).partition("=")
        options[name] = value
    count = int(options.get("--ntasks") or os.environ["SLURM_JOB_NUM_NODES"])
    hosts = options.get("--nodelist") or os.environ["SLURM_JOB_NODELIST"]
    with open(os.environ["FAKE_SLURM_LOG"], "a") as log:
        log.write(json.dumps({"options": options, "command": arguments}) + "\n")
    step = {
        "SLURM_STEP_NUM_TASKS": str(count), "SLURM_NTASKS": str(count), "SLURM_STEP_NUM_NODES": str(count),
        "SLURM_STEP_NODELIST": hosts, "SLURM_LOCALID": "0",
    }  # fmt: skip
    started = [
        subprocess.Popen(arguments, env=os.environ | step | {"SLURM_PROCID": str(index)}, start_new_session=True)
        for index in range(count)
    ]

    def end(*_: object) -> None:
        for process in started:
            os.killpg(process.pid, signal.SIGTERM)
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
    while any(process.poll() is None for process in started):
        if "--kill-on-bad-exit" in options and any(process.poll() for process in started):
            time.sleep(20)  # Slurm waits, too, before it kills
            for process in started:
                process.kill()
        time.sleep(0.2)
    return max(abs(process.returncode) for process in started)


def scontrol(arguments: list[str]) -> int:
    assert arguments[:2] == ["show", "hostnames"]
    print("\n".join(arguments[2].split(",")))
    return 0


if __name__ == "__main__":
    sys.exit({"srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
