"""Build a search index from a file of passages; the same command again goes on after a stop; docs/search.md.

python experiments/index.py wiki.jsonl indices/wiki --kind bm25
python experiments/index.py wiki.jsonl indices/wiki --kind ivf --url http://127.0.0.1:30000/v1 --dim 1024
python experiments/index.py wiki.jsonl indices/wiki --kind IVF65536,SQ8 --url http://127.0.0.1:30000/v1
python experiments/index.py wiki.jsonl indices/wiki --url https://api.openai.com/v1 --key-env OPENAI_API_KEY
"""

import asyncio
from argparse import Namespace
from pathlib import Path

from orchestra_jax.config.help import Parser
from orchestra_jax.types import InfrastructureError


async def build(options: Namespace) -> int:
    """Write the index and return how many passages it holds."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from orchestra_jax.tools.search import bm25, dense_build, embeddings, local  # only now: --help answers at once

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bars:
        if options.kind == "bm25":
            local.refuse_folder(Path(options.directory))  # before an hour of reading
            passages = list(bars.track(local.read_passages(options.passages), description="read", total=None))
            local.save_index(bm25.LocalIndex.build(passages), options.directory)
            return len(passages)
        embedder = embeddings.EndpointEmbedder(options.url, options.model, dim=options.dim, key_env=options.key_env)
        stages = {stage: bars.add_task(stage, total=None) for stage in ("read", "embed", "index")}
        index = await dense_build.build(
            options.passages,
            options.directory,
            embedder,
            kind=options.kind,
            progress=lambda stage, done, total: bars.update(stages[stage], completed=done, total=total or None),
        )
        await index.close()
        return len(index.passages)


def main() -> None:
    """Build the index that the arguments describe."""
    parser = Parser(__doc__)
    parser.add_argument("passages", help=".jsonl or .json file with title and text")
    parser.add_argument("directory", help="folder of the index")
    parser.add_argument("--kind", default="flat", help="bm25, flat, ivf, hnsw or a FAISS factory string")
    parser.add_argument("--url", help="an embedding server's base; every kind but bm25 needs it")
    parser.add_argument("--model", default="Qwen/Qwen3-Embedding-8B", help="name at the embedding server")
    parser.add_argument("--dim", type=int, help="keep the first so many numbers of each vector")
    parser.add_argument("--key-env", help="environment variable that holds the server's key")
    options = parser.parse_args()
    if options.kind != "bm25" and not options.url:
        parser.error(f"--kind {options.kind} needs --url, an embedding server's base; --kind bm25 needs none")
    try:
        print(f"{asyncio.run(build(options))} passages in {options.directory}")
    except (OSError, ValueError, ImportError, InfrastructureError) as error:
        if isinstance(error, OSError) and error.strerror:  # of the system's own errors
            parser.exit(2, f"{error.filename!r} cannot be read or written ({error.strerror}): name another.\n")
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
