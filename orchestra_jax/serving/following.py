"""Take up the weights that training leaves in a folder, while requests go on."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.training.subject import subject_of

if TYPE_CHECKING:
    from orchestra_jax.serving.canary import Canary
    from orchestra_jax.serving.orchestrator import Orchestrator

_LOOK_S = 2.0  # between two looks


class Follower:
    """Looks for other weights in a folder.

    Args:
        folder: folder of a run, whose exported policy is taken, or of a checkpoint.
    """

    def __init__(self, orchestrator: "Orchestrator | Canary", folder: Path) -> None:
        self._orchestrator, self._folder = orchestrator, folder
        self._seen, self._tried = "", orchestrator.subject.identity()

    def look(self) -> str | None:
        """Take up what is new and lay still since the last look; return a sentence about it, or None."""
        cfg = replace(self._orchestrator.subject.cfg, policy=str(self._folder))
        if not self._folder.is_dir():  # nor is it an id on the hub
            return None
        try:
            subject = subject_of(cfg)
            identity = subject.identity()
        except (ConfigError, OSError):  # no policy is in it yet
            return None
        seen, self._seen = self._seen, identity
        if identity == self._tried or identity != seen:
            return None
        self._tried = identity
        try:
            self._orchestrator.take_up(subject)
        except (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
            why = error if isinstance(error, OSError | ValueError | RuntimeError) else repr(error)  # a foreign config
            return f"The policy in {self._folder} is not taken up: {why}"
        return f"Takes up the policy in {self._folder}, as {self._orchestrator.policy}."

    async def follow(self) -> None:
        """Look again and again, and tell what is taken up."""
        while True:
            if said := await asyncio.to_thread(self.look):
                print(said, file=sys.stderr, flush=True)
            await asyncio.sleep(_LOOK_S)
