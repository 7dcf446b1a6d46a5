"""Texts as vectors for dense search, from an embedding server."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from orchestra_jax.io.http_json import JsonClient
from orchestra_jax.types import InfrastructureError

Vectors = Float[np.ndarray, "N D"]

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class EndpointEmbedder:
    """Texts as unit vectors whose inner products say how near they are, from any server of OpenAI's /embeddings.

    Such are SGLang or vLLM with Qwen3-Embedding, or a vendor. Queries get the instruction that Qwen3-Embedding was
    trained with, passages none. Vectors are normalised here.

    Attributes:
        identity: one line with all that vectors depend on: equal for two embedders exactly when their vectors can be
            compared.
        settings: JSON that makes this embedder again; no secrets.

    Args:
        url: the server's base, such as "http://127.0.0.1:30000/v1".
        dim: keeps the first `dim` numbers of each vector (Matryoshka models such as Qwen3-Embedding); None: all.
        instruction: for queries, "" for models without one.
        key_env: environment variable with the key, None for servers without one.
        batch: texts per request; concurrency: requests at a time.
        max_chars: longer texts are cut, so that no text is beyond the server's context.
        timeout_s, retries, backoff_s: see `JsonClient`.

    Raises:
        ValueError: the key's variable is not set.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        dim: int | None = None,
        instruction: str = INSTRUCTION,
        key_env: str | None = None,
        batch: int = 64,
        concurrency: int = 8,
        max_chars: int = 16_000,
        timeout_s: float = 120.0,
        retries: int = 5,
        backoff_s: float = 0.5,
    ) -> None:
        if (dim is not None and dim < 1) or batch < 1 or concurrency < 1 or max_chars < 1:
            raise ValueError("An endpoint embedder needs dim, batch, concurrency and max_chars of at least 1.")
        headers = {}
        if key_env is not None:
            if not os.environ.get(key_env):
                raise ValueError(f"The embedding server's key is read from ${key_env}, which is not set; export it.")
            headers["Authorization"] = f"Bearer {os.environ[key_env]}"
        self.identity = f"{model} (dim {dim or 'full'}, texts up to {max_chars} characters)"
        self.settings: dict[str, Any] = {
            "type": "endpoint",
            "url": url,
            "model": model,
            "dim": dim,
            "instruction": instruction,
            "key_env": key_env,
            "max_chars": max_chars,
        }
        self._model, self._dim, self._max_chars = model, dim, max_chars
        self._prefix = f"Instruct: {instruction}\nQuery:" if instruction else ""
        self._batch, self._concurrency = batch, concurrency
        self._client = JsonClient(url, headers=headers, timeout_s=timeout_s, retries=retries, backoff_s=backoff_s)

    async def embed(self, texts: Sequence[str], kind: Literal["passage", "query"] = "passage") -> Vectors:
        """Return a float32 row of length 1 per text; raise InfrastructureError: the server failed."""
        # A server refuses an empty text.
        prompts = [(self._prefix if kind == "query" else "") + (text[: self._max_chars] or " ") for text in texts]
        limit = asyncio.Semaphore(self._concurrency)

        async def request(start: int) -> Vectors:
            async with limit:
                return await self._request(prompts[start : start + self._batch])

        if not prompts:
            return np.zeros((0, self._dim or 0), np.float32)
        try:
            async with asyncio.TaskGroup() as group:  # the first failure cancels the others
                tasks = [group.create_task(request(start)) for start in range(0, len(prompts), self._batch)]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        found = [task.result() for task in tasks]
        if len(widths := sorted({vectors.shape[1] for vectors in found})) > 1:
            raise InfrastructureError(
                f"The embedding server {self._client.url} gave vectors of {widths[0]} and of {widths[-1]} numbers: "
                "behind it are two models."
            )
        return np.concatenate(found)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _request(self, batch: list[str]) -> Vectors:
        """Return the vectors of one request's texts, each of length one."""
        body = {"model": self._model, "input": batch, "encoding_format": "float"}
        answer = await self._client.post("/embeddings", body)
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            with np.errstate(over="ignore"):  # found below
                vectors = np.asarray([row["embedding"] for row in rows], np.float32)
            if [row["index"] for row in rows] != list(range(len(batch))) or vectors.ndim != 2:
                raise ValueError(f"{len(rows)} vectors for {len(batch)} texts")
            if vectors.shape[1] < (self._dim or 1):
                raise ValueError(f"vectors of {vectors.shape[1]} numbers, fewer than dim={self._dim}")
            vectors = vectors[:, : self._dim]
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            if not np.all(np.isfinite(lengths)) or not np.all(lengths > 0):
                raise ValueError("a vector that is zero or not finite")
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            said = str(error)[:200]
            problem = f"The embedding server {self._client.url} gave an answer that cannot be used: {said}."
            raise InfrastructureError(problem) from None
        return vectors / lengths
