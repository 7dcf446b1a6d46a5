"""Builds a search index from a file of passages; running it again after a stop goes on. See docs/search.md.

python experiments/index.py wiki.jsonl indices/wiki --kind bm25
python experiments/index.py wiki.jsonl indices/wiki --kind IVF65536,SQ8 --url http://127.0.0.1:30000/v1 --dim 1024
"""

import argparse
import asyncio

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from orchestra_jax.tools.search import dense_build
from orchestra_jax.tools.search.embeddings import EndpointEmbedder
from orchestra_jax.tools.search.local import LocalIndex, read_passages
from orchestra_jax.types import InfrastructureError


async def build(options: argparse.Namespace) -> int:
    """Writes the index and returns how many passages it holds."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bars:
        if options.kind == "bm25":
            passages = list(bars.track(read_passages(options.passages), description="read", total=None))
            LocalIndex.build(passages).save(options.directory)
            return len(passages)
        embedder = EndpointEmbedder(options.url, options.model, dim=options.dim, key_env=options.key_env)
        stages = {stage: bars.add_task(stage, total=None) for stage in ("read", "embed", "index")}

        def show(stage: str, done: int, total: int) -> None:
            bars.update(stages[stage], completed=done, total=total or None)

        index = await dense_build.build(options.passages, options.directory, embedder, kind=options.kind, progress=show)
        await index.close()
        return len(index.passages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        count = asyncio.run(build(options))
    except (OSError, ValueError, ImportError, InfrastructureError) as error:
        parser.exit(2, f"{error}\n")
    print(f"{count} passages in {options.directory}")


if __name__ == "__main__":
    main()
