"""Texts as vectors for dense search: from an embedding server, or from a light model fitted on the corpus itself."""

import asyncio
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Float, Int

from orchestra_jax.http_json import JsonClient
from orchestra_jax.tools.search.words import content_words
from orchestra_jax.types import InfrastructureError

Kind = Literal["passage", "query"]
Vectors = Float[np.ndarray, "N D"]

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_NONZEROS = 8  # of a word in the sketch
_MODEL_FILE = "lsa.npz"
_NO_WORDS = np.zeros(0, np.int64)
_ODD = np.uint64(0x9E3779B97F4A7C15)  # of splitmix64, as the constants in _mix


class Embedder(Protocol):
    """Turns texts into unit vectors whose inner products say how near they are.

    Attributes:
        recipe: one line with all that vectors depend on, as far as it is known before the embedder has seen a corpus.
        identity: the recipe and what was learned: equal for two embedders exactly when their vectors can be compared.
    """

    @property
    def recipe(self) -> str: ...

    @property
    def identity(self) -> str: ...

    def settings(self) -> dict[str, Any]:
        """What `load_embedder` needs to make this embedder again, as JSON; no secrets."""
        ...

    def prepare(self, directory: Path, texts: Sequence[str]) -> None:
        """Called once before the passages of a corpus are embedded: a model that learns from them does so here and
        keeps what it learned in `directory`, or reads it from there."""
        ...

    async def embed(self, texts: Sequence[str], kind: Kind = "passage") -> Vectors:
        """One float32 row of length 1 per text (of length 0 where the text holds nothing to go by).

        Raises:
            InfrastructureError: the server behind it failed.
        """
        ...

    async def close(self) -> None:
        """Releases connections."""
        ...


def load_embedder(settings: Mapping[str, Any], directory: Path) -> Embedder:
    """The embedder of a saved index, from its settings and what it kept in `directory`.

    Raises:
        ValueError: an embedder that is not one of this module's.
    """
    options = {key: value for key, value in settings.items() if key != "type"}
    if settings.get("type") == "endpoint":
        return EndpointEmbedder(**options)
    if settings.get("type") == "lsa":
        embedder = LsaEmbedder(**options)
        embedder.restore(directory)
        return embedder
    raise ValueError(f"The index was embedded by {settings.get('type')!r}; pass that embedder to DenseIndex.load.")


class EndpointEmbedder:
    """Any server of OpenAI's /embeddings: SGLang or vLLM with Qwen3-Embedding, or a vendor.

    Queries get the instruction that Qwen3-Embedding was trained with, passages none. Vectors are normalised here.

    Attributes:
        prompt_tokens: tokens that the server has reported so far. Nothing is charged to trajectories for them.

    Args:
        url: the server's base, such as "http://127.0.0.1:30000/v1".
        model: name at the server.
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
        self.prompt_tokens = 0
        self._settings: dict[str, Any] = {
            "type": "endpoint", "url": url, "model": model, "dim": dim, "instruction": instruction, "key_env": key_env,
            "max_chars": max_chars,
        }  # fmt: skip
        self._model, self._dim, self._instruction = model, dim, instruction
        self._batch, self._concurrency, self._max_chars = batch, concurrency, max_chars
        self._client = JsonClient(url, headers=headers, timeout_s=timeout_s, retries=retries, backoff_s=backoff_s)

    @property
    def recipe(self) -> str:
        return f"{self._model} (dim {self._dim or 'full'}, texts up to {self._max_chars} characters)"

    @property
    def identity(self) -> str:
        return self.recipe

    def settings(self) -> dict[str, Any]:
        return dict(self._settings)

    def prepare(self, directory: Path, texts: Sequence[str]) -> None:
        """Nothing to learn."""

    async def embed(self, texts: Sequence[str], kind: Kind = "passage") -> Vectors:
        prefix = f"Instruct: {self._instruction}\nQuery:" if kind == "query" and self._instruction else ""
        # A server refuses an empty text.
        prompts = [prefix + (text[: self._max_chars] or " ") for text in texts]
        batches = [prompts[start : start + self._batch] for start in range(0, len(prompts), self._batch)]
        if not batches:
            return np.zeros((0, self._dim or 0), np.float32)
        if len(batches) == 1:
            return await self._request(batches[0])
        limit = asyncio.Semaphore(self._concurrency)

        async def one(batch: list[str]) -> Vectors:
            async with limit:
                return await self._request(batch)

        try:
            async with asyncio.TaskGroup() as group:  # the first failure cancels the others
                tasks = [group.create_task(one(batch)) for batch in batches]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return np.concatenate([task.result() for task in tasks])

    async def close(self) -> None:
        await self._client.close()

    async def _request(self, batch: list[str]) -> Vectors:
        body = {"model": self._model, "input": batch, "encoding_format": "float"}
        answer = await self._client.post("/embeddings", body)
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            vectors = np.asarray([row["embedding"] for row in rows], np.float32)
            if [row["index"] for row in rows] != list(range(len(batch))) or vectors.ndim != 2:
                raise ValueError(f"{len(rows)} vectors for {len(batch)} texts")
            if vectors.shape[1] < (self._dim or 1):
                raise ValueError(f"vectors of {vectors.shape[1]} numbers, fewer than dim={self._dim}")
            vectors = vectors[:, : self._dim]
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            if not np.all(np.isfinite(lengths)) or not np.all(lengths > 0):
                raise ValueError("a vector that is zero or not finite")
        except (KeyError, TypeError, ValueError) as error:
            problem = f"The embedding server {self._client.url} gave an answer that cannot be used: {error}."
            raise InfrastructureError(problem) from None
        usage = answer.get("usage")
        self.prompt_tokens += (usage or {}).get("prompt_tokens") or 0
        return vectors / lengths


class LsaEmbedder:
    """Word statistics of the corpus as vectors: latent semantic analysis plus a sketch of what it leaves out.

    A text is its TF-IDF vector over words. Its first `dim` numbers are the projection on the corpus' leading singular
    vectors (words that occur together are near). The further `sketch` numbers are a sparse random projection of the
    rest, which keeps rare words and names, unseen ones too. Inner products approximate those of TF-IDF. No download,
    no GPU; a model that knows language finds much more.

    Args:
        dim: singular vectors.
        sketch: numbers of the random projection; 0 for plain LSA.
        sample: passages to fit on, spread evenly over the corpus.
        max_words: words that the singular vectors know, the most frequent ones.
        seed: of the randomised decomposition and the sketch.

    Raises:
        ValueError: dim, sample or max_words below 1, or sketch below 0.
    """

    def __init__(
        self, dim: int = 128, sketch: int = 896, *, sample: int = 50_000, max_words: int = 100_000, seed: int = 0
    ) -> None:
        if dim < 1 or sketch < 0 or sample < 1 or max_words < 1:
            raise ValueError("LsaEmbedder needs dim, sample and max_words of at least 1, and sketch of at least 0.")
        self.dim, self.sketch, self.sample, self.max_words, self.seed = dim, sketch, sample, max_words, seed
        self._words: Int[np.ndarray, "W"] = _NO_WORDS  # sorted hashes; what follows is parallel to them
        self._idf: Float[np.ndarray, "W"]
        self._basis: Float[np.ndarray, "W K"]  # singular vectors; K < dim in a tiny corpus, then padded with zeros
        self._sketched: Float[np.ndarray, "S K"]  # the sketch of each singular vector
        self._unseen_idf = 0.0
        self._digest = "not fitted"

    @property
    def recipe(self) -> str:
        return (
            f"LSA (dim {self.dim} + {self.sketch}, sample {self.sample}, max_words {self.max_words}, seed {self.seed})"
        )

    @property
    def identity(self) -> str:
        return f"{self.recipe} model {self._digest}"

    def settings(self) -> dict[str, Any]:
        return {
            "type": "lsa", "dim": self.dim, "sketch": self.sketch, "sample": self.sample, "max_words": self.max_words,
            "seed": self.seed,
        }  # fmt: skip

    def prepare(self, directory: Path, texts: Sequence[str]) -> None:
        if (directory / _MODEL_FILE).is_file():
            self.restore(directory)
            return
        chosen = np.linspace(0, len(texts) - 1, min(self.sample, len(texts)), dtype=np.int64)
        self.fit(texts[int(index)] for index in chosen)
        self.save(directory)

    def fit(self, texts: Iterable[str]) -> None:
        """Learns the words and the singular vectors; about a minute for 50,000 passages.

        Raises:
            ValueError: no word in any text.
        """
        counts = [_count(text) for text in texts]
        found, frequency = np.unique(np.concatenate([ids for ids, _ in counts]), return_counts=True)
        if not len(found):
            raise ValueError("An LSA model needs at least one passage with a word in it.")
        kept = np.sort(np.lexsort((found, -frequency))[: self.max_words])
        self._words = found[kept]
        self._idf = (np.log((1 + len(counts)) / (1 + frequency[kept])) + 1).astype(np.float32)
        self._unseen_idf = float(np.log(1 + len(counts)) + 1)
        matrix, words = self._tf_idf(counts)
        known, _ = self._lookup(words)  # words are sorted, and so are the model's: the columns agree
        self._basis = _singular_vectors(matrix[:, known], self.dim, self.seed)
        self._ready()

    def save(self, directory: Path) -> None:
        """Writes the model into `directory`, whole or not at all."""
        partial = directory / f"{_MODEL_FILE}.partial"
        with partial.open("wb") as file:
            np.savez(file, words=self._words, idf=self._idf, basis=self._basis, unseen_idf=self._unseen_idf)
        partial.replace(directory / _MODEL_FILE)

    def restore(self, directory: Path) -> None:
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: no model in `directory`.
        """
        path = directory / _MODEL_FILE
        if not path.is_file():
            raise FileNotFoundError(f"The embedder's model {str(path)!r} is missing; build the index again.")
        with np.load(path) as saved:
            self._words, self._idf, self._basis = saved["words"], saved["idf"], saved["basis"]
            self._unseen_idf = float(saved["unseen_idf"])
        self._ready()

    async def embed(self, texts: Sequence[str], kind: Kind = "passage") -> Vectors:
        return await asyncio.to_thread(self.embed_now, texts)

    async def close(self) -> None:
        """Nothing to release."""

    def embed_now(self, texts: Sequence[str]) -> Vectors:
        """`embed` without an event loop.

        Raises:
            ValueError: the model is not fitted.
        """
        if not len(self._words):
            raise ValueError("This LSA model has learned nothing yet; call fit, or restore a saved one.")
        vectors = np.zeros((len(texts), self.dim + self.sketch), np.float32)
        matrix, words = self._tf_idf([_count(text) for text in texts])
        known, place = self._lookup(words)
        latent = matrix[:, known] @ self._basis[place[known]]
        vectors[:, : latent.shape[1]] = latent
        vectors[:, self.dim :] = (matrix @ self._hashed(words)).toarray() - latent @ self._sketched.T
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(lengths > 1e-6, lengths, np.inf)

    def _tf_idf(self, counts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Any, Int[np.ndarray, "U"]]:
        """Rows of length 1 over the words of these texts, sorted hashes: (CSR matrix [N, U], words [U])."""
        lengths = [len(ids) for ids, _ in counts]
        words, columns = np.unique(np.concatenate([ids for ids, _ in counts] or [_NO_WORDS]), return_inverse=True)
        known, place = self._lookup(words)
        idf = np.full(len(words), self._unseen_idf, np.float32)
        idf[known] = self._idf[place[known]]
        tf = 1 + np.log(np.concatenate([times for _, times in counts] or [_NO_WORDS]), dtype=np.float32)
        values = tf * idf[columns]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        norms = np.sqrt(np.bincount(np.repeat(np.arange(len(counts)), lengths), values**2, minlength=len(counts)))
        values /= np.repeat(np.maximum(norms, 1e-9), lengths).astype(np.float32)
        return _sparse()((values, columns, starts), shape=(len(counts), len(words))), words

    def _lookup(self, words: Int[np.ndarray, "U"]) -> tuple[np.ndarray, np.ndarray]:
        """(which of these words the model knows, their place in it)."""
        place = np.minimum(np.searchsorted(self._words, words), len(self._words) - 1)
        return self._words[place] == words, place

    def _hashed(self, words: Int[np.ndarray, "U"]) -> Any:
        """The sparse random projection [U, sketch] of each word: 8 signed entries that depend on its hash only."""
        if not self.sketch:
            return _sparse()((len(words), 0), dtype=np.float32)
        bits = _mix(words[:, None].astype(np.uint64), np.arange(_NONZEROS) + _NONZEROS * self.seed)
        columns = (bits >> np.uint64(1)) % np.uint64(self.sketch)
        signs = np.where(bits & np.uint64(1), 1.0, -1.0).astype(np.float32) / np.float32(_NONZEROS**0.5)
        starts = np.arange(0, bits.size + 1, _NONZEROS)
        return _sparse()((signs.ravel(), columns.ravel().astype(np.int64), starts), shape=(len(words), self.sketch))

    def _ready(self) -> None:
        """Derives what is not stored: the sketches of the singular vectors, and the digest of the model."""
        self._sketched = (self._hashed(self._words).T @ self._basis).astype(np.float32)
        data = self._words.tobytes() + self._idf.tobytes() + self._basis.tobytes()
        self._digest = hashlib.sha256(data).hexdigest()[:12]


def _count(text: str) -> tuple[Int[np.ndarray, "U"], Int[np.ndarray, "U"]]:
    """Hashes of the distinct words of a text, and how often each occurs."""
    counts = Counter(content_words(text))
    hashes = np.fromiter((zlib.crc32(word.encode()) for word in counts), np.int64, len(counts))
    return hashes, np.fromiter(counts.values(), np.int64, len(counts))


def _mix(words: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """64 well-mixed bits per word and lane (the finaliser of splitmix64)."""
    bits = words * _ODD + lanes.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _singular_vectors(matrix: Any, dim: int, seed: int) -> Float[np.ndarray, "W K"]:
    """The leading right singular vectors of a sparse [N, W] matrix, at most `dim`, by a randomised range finder."""
    start = np.random.default_rng(seed).standard_normal((matrix.shape[1], dim + 16), dtype=np.float32)
    basis, _ = np.linalg.qr(matrix @ start)
    for _ in range(3):
        basis, _ = np.linalg.qr(matrix @ (matrix.T @ basis))
    _, values, vectors = np.linalg.svd((matrix.T @ basis).T, full_matrices=False)
    rank = int(np.sum(values > 1e-4 * values[0]))
    return np.ascontiguousarray(vectors[: min(dim, rank)].T)


def _sparse() -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix
