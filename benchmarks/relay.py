"""Tokens and CPU-seconds of a supervised step of `+experiment=recorded`'s policy with the relay and without it.

ORCHESTRA_DATA=... GLIBC_TUNABLES=glibc.malloc.hugetlb=1 JAX_PLATFORMS=cpu python benchmarks/relay.py

Without the relay a policy writes the answer itself, so that rows are longer and need more widths. Both forms take their
steps in turns on demonstrations of their own, 76 prompts a step; the first steps, which compile, do not count.
"""

import argparse
import time
from itertools import chain

import jax
import numpy as np
import optax
from short import parse

import orchestra_jax as oj
from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.families import preset_config
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rl.batching import MicroBatch, MicroShapes
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.packing import micro_batches
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.training.beginnings import with_beginnings
from orchestra_jax.training.build import make_collector
from orchestra_jax.training.warm_start import demonstration_rows

_LONGEST = 96  # tokens of an answer
FORMS = {
    "relay": ((), (16, 48)),
    "no relay": (
        (
            "tools.relay=false",
            f"rollout.limits.max_new_tokens={_LONGEST}",
            "rollout.limits.max_length=576",
            "rollout.widths=[16,48,176,272,448,576]",
        ),
        (16, 48, 112, 208),
    ),
}  # settings, and widths of what follows a prompt


def steps(name: str, count: int, prompts: int, layers: int) -> tuple[list[list[MicroBatch]], Learner, object]:
    """Return the micro-batches of so many steps, a learner and its state, and tell what demonstrations hold."""
    words, widths = FORMS[name]
    cfg = oj.compose("+experiment=recorded", f"warm_start.demonstrations={count * prompts}", *words)
    environment, chat = RecordedEnvironment(cfg), make_chat(cfg)
    shown, collector = environment.demonstrations(), make_collector(cfg, environment, chat)
    with LoopThread() as loop:
        played = loop.run(collector.play(shown.script, shown.tasks, shown.think, budget=Budget()))
    longest = RolloutLimits(max_new_tokens=_LONGEST)
    rows = with_beginnings(
        [demonstration_rows(each, longest) for each in played], map(shown.beginnings, shown.tasks), chat
    )
    after = [len(whole.tokens) - whole.prefix for whole, *_ in rows]
    said = [sum(whole.sampled) for whole, *_ in rows]
    print(
        f"{name}: {np.mean(after):.1f} tokens after the prompt (at most {max(after)}), {np.mean(said):.1f} of them said"
    )
    shapes = MicroShapes(cfg.algorithm.micro_tokens, widths, (112, 176), 2, (0.4,))
    model = preset_config(cfg.model, vocab_size=len(chat.tokenizer)).replace(num_layers=layers)
    learner = Learner(model, LearnerConfig(LossConfig("sequence"), chunk=512), optax.sgd(1e-3))
    cut = [micro_batches([*chain(*rows[k * prompts : (k + 1) * prompts])], shapes) for k in range(count)]
    return cut, learner, learner.init(init_params(model, jax.random.key(0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=76, help="of a step")
    parser.add_argument("--layers", type=int, default=3, help="of the policy (default 3)")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each form")
    given = parse(parser, "--prompts", "4", "--rounds", "3", "--layers", "1")
    if min(given.prompts, given.rounds - 2) < 1:
        parser.error("--prompts is at least 1, and --rounds at least 3.")
    made = {name: steps(name, given.rounds, given.prompts, given.layers) for name in FORMS}
    states, seconds = {name: state for name, (_, _, state) in made.items()}, {name: list[float]() for name in FORMS}
    for number in range(given.rounds):
        for name, (batches, learner, _) in made.items():
            began = time.process_time()
            states[name], _ = learner.supervised_step(states[name], batches[number])
            jax.block_until_ready(states[name])
            seconds[name].append(time.process_time() - began)
    for name, each in seconds.items():
        print(f"{name:8}  {np.median(each[given.rounds // 2 :]):.3f} CPU-seconds a step")


if __name__ == "__main__":
    main()
