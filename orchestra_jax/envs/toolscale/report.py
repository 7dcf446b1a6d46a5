"""The command that counts ToolScale's tasks that replay in each domain, and tells why each of the others does not.

python -m orchestra_jax.envs.toolscale.report --repo CLONE --rows nvidia/ToolScale
"""

import argparse
import os
import sys

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.toolscale import tasks
from orchestra_jax.envs.toolscale.environment import OPTIONS, open_worlds


def main() -> int:
    """Print the report; return 0 if every row is a task that can be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.environ
    parser.add_argument("--repo", default=here.get("TOOLSCALE_REPO"), help="a clone of the authors' repository")
    parser.add_argument("--rows", default=here.get("TOOLSCALE_PATH", tasks.ROWS), help="file, folder or id on the hub")
    parser.add_argument("--data", help="folder of <domain>/db.json and policy.md; by default the clone's")
    parser.add_argument("--domains", nargs="*", default=[], help="some of them")
    parser.add_argument("--isolation", default="auto", help="of the sandbox")
    asked = parser.parse_args()
    if not asked.repo:
        parser.error("--repo or TOOLSCALE_REPO names a clone of the authors' repository")
    try:
        found, broken = tasks.read_all(asked.rows, asked.domains)
        options = {**OPTIONS, "repo": asked.repo, "data": asked.data, "isolation": asked.isolation}
        worlds = open_worlds(options, sorted({user.domain for user, _ in found.values()}))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        sifted = tasks.sift(found, worlds, broken)
    finally:
        for world in worlds.values():
            world.close()
    print("\n".join(tasks.report(sifted, found)))
    return int(bool(sifted.unusable or sifted.broken))


if __name__ == "__main__":
    sys.exit(main())
