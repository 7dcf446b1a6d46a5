"""The embedded engine: continuous batching in this process with a few fixed shapes.

A fixed number of slots share one key-value cache. A new sequence takes a slot: its prompt is prefilled once for all
sequences with the same prompt, later turns extend the slot by what is new, and decoding runs `chunk` tokens at a time
over the smallest row bucket that holds the running sequences. Sequences join and leave between chunks; a slot keeps
its keys and values until its session is closed.

In a slot, `length` tokens are cached and the next input is token `length`, which is not: the last prompt token or the
last sampled one.
"""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from orchestra_jax.models import qwen3
from orchestra_jax.rollout.engine import Generation, SamplingParams

_MAX_STOP_IDS = 4


@dataclass
class _Request:
    """A generation under way."""

    session: int
    prompt: tuple[int, ...]
    params: SamplingParams
    future: "asyncio.Future[Generation]"
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)  # (weight version, tokens) in order
    cached: int = 0

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.prompt, *self.sampled)

    def result(self, reason: str) -> Generation:
        spans = tuple(self.spans) if len(self.spans) > 1 else ()
        return Generation(
            tuple(self.sampled), tuple(self.logprobs), reason, self.spans[0][0], self.cached, version_spans=spans
        )


class EmbeddedEngine:
    """Samples from a `Qwen3` policy in this process.

    Args:
        config: the policy's architecture.
        params: its parameters.
        version: weight version of `params`.
        slots: sequences held at once; more wait their turn.
        max_length: longest sequence in tokens, prompt included.
        chunk: tokens decoded between two admissions.
        widths: compiled widths of a prefill or an extension; a longer one is done in several passes.
        lockstep: run only when every open session waits here. Sampling then does not depend on how long tools take,
            which makes whole runs reproducible bit for bit; without it sequences decode as they come.

    Raises:
        ValueError: from `generate`, for a prompt that is empty or leaves no room in `max_length`, no new tokens, more
            than four stop ids, or a session that is closed or generating already.
        RuntimeError: from `generate`, once the engine is closed.
    """

    def __init__(
        self,
        config: qwen3.Qwen3Config,
        params: Any,
        *,
        version: int = 0,
        slots: int = 256,
        max_length: int = 192,
        chunk: int = 8,
        widths: Sequence[int] = (16, 64, 256, 1024),
        lockstep: bool = True,
    ) -> None:
        self.config, self.params, self.version = config, params, version
        self.slots, self.max_length, self.chunk, self.lockstep = slots, max_length, chunk, lockstep
        # One spare slot takes the writes of padding rows.
        self._cache = qwen3.empty_cache(config, slots + 1, max_length)
        self._ids: list[tuple[int, ...]] = [()] * (slots + 1)  # tokens whose keys and values the slot holds
        self._free = list(range(slots))
        self._slot_of: dict[int, int] = {}
        self._waiting: dict[int, _Request] = {}
        self._running: dict[int, _Request] = {}
        self._open: set[int] = set()
        self._next_session = 0
        self._closed = False
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._widths = sorted({min(width, max_length) for width in widths})
        self._rows = sorted({max(1, slots // 16), max(1, slots // 4), slots})
        self._prefill = jax.jit(functools.partial(_prefill, config))
        self._extend = jax.jit(functools.partial(_extend, config), donate_argnums=1)
        self._decode = jax.jit(functools.partial(_decode, config, chunk), donate_argnums=1)
        self._spread = jax.jit(_spread, donate_argnums=0)

    def open_session(self) -> int:
        self._next_session += 1
        self._open.add(self._next_session)
        return self._next_session

    def close_session(self, session: int) -> None:
        self._open.discard(session)
        request = self._under_way(session)
        if request is not None:
            request.future.cancel()
            self._forget(request)
        slot = self._slot_of.pop(session, None)
        if slot is not None:
            self._ids[slot] = ()
            self._free.append(slot)
        self._wake.set()

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Generation:
        if self._closed:
            raise RuntimeError("The engine is closed; make a new one.")
        prompt = tuple(prompt_ids)
        if len(prompt) + 1 > self.max_length:
            raise ValueError(
                f"A prompt of {len(prompt)} tokens leaves no room to sample in rollout.max_length={self.max_length}; "
                f"raise rollout.max_length."
            )
        if not prompt:
            raise ValueError("The prompt is empty; give at least one token.")
        if params.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {params.max_new_tokens}.")
        if len(params.stop_ids) > _MAX_STOP_IDS:
            raise ValueError(f"At most {_MAX_STOP_IDS} stop ids are supported, got {len(params.stop_ids)}.")
        own = session is None
        key = self.open_session() if session is None else session
        if key not in self._open:
            raise ValueError(f"Session {key} is not open; call open_session() first.")
        if self._under_way(key) is not None:
            raise ValueError(f"Session {key} is generating already; await that first, or open another session.")
        loop = asyncio.get_running_loop()
        if self._loop_task is None or self._loop_task.done():
            self._wake = asyncio.Event()  # an event belongs to one loop, an engine may serve several in turn
            self._loop_task = loop.create_task(self._run())
        request = _Request(key, prompt, params, loop.create_future())
        self._waiting[key] = request
        self._wake.set()
        try:
            return await request.future
        finally:
            self._forget(request)  # still there only if the caller was cancelled
            if own:
                self.close_session(key)

    async def update_weights(self, params: Any, version: int) -> None:
        """In force at once: generations under way go on with it, on keys and values that are computed anew."""
        self.params, self.version = params, version
        self._ids = [()] * (self.slots + 1)
        self._waiting |= self._running
        self._running.clear()

    async def close(self) -> None:
        self._closed = True
        if self._loop_task is not None and not self._loop_task.done():
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        self._fail(RuntimeError("The engine was closed while this generation was under way."))

    def _under_way(self, session: int) -> _Request | None:
        return self._waiting.get(session) or self._running.get(session)

    def _forget(self, request: _Request) -> None:
        """Withdraws a request; what its slot holds by now stays valid."""
        for requests in (self._waiting, self._running):
            if requests.get(request.session) is request:
                del requests[request.session]
                self._wake.set()

    def _fail(self, error: Exception) -> None:
        """Hands the error to every caller: none may wait for ever."""
        for request in (*self._waiting.values(), *self._running.values()):
            if not request.future.done():
                request.future.set_exception(error)
        self._waiting.clear()
        self._running.clear()

    async def _run(self) -> None:
        """Admits, extends and decodes while there is something to do; then sleeps until woken."""
        while True:
            while self._ready():
                try:
                    self._step()
                except Exception as error:
                    self._fail(error)
                    # A failed step may have consumed the donated cache.
                    self._cache = qwen3.empty_cache(self.config, self.slots + 1, self.max_length)
                    self._ids = [()] * (self.slots + 1)
                await asyncio.sleep(0)
            self._wake.clear()
            await self._wake.wait()

    def _ready(self) -> bool:
        """Whether a step would do something: one without a slot waits until a session is closed."""
        if self.lockstep and len(self._waiting) + len(self._running) < len(self._open):
            return False
        return bool(self._running) or any(self._free or session in self._slot_of for session in self._waiting)

    def _step(self) -> None:
        admitted = []
        for session in sorted(self._waiting):
            if session not in self._slot_of:
                if not self._free:
                    continue
                self._free.sort()
                self._slot_of[session] = self._free.pop(0)
            admitted.append(self._waiting.pop(session))
        self._running.update((request.session, request) for request in admitted)
        if admitted:
            self._fill(admitted)
        if self._running:
            self._decode_chunk([self._running[session] for session in sorted(self._running)])

    def _fill(self, requests: list[_Request]) -> None:
        """Brings every slot to hold all but the last token of its request."""
        fresh: dict[tuple[int, ...], list[int]] = {}
        for request in requests:
            slot, wanted = self._slot_of[request.session], request.ids[:-1]
            held = _common_prefix(self._ids[slot], wanted)
            if not request.sampled:
                request.cached = held
            self._ids[slot] = wanted[:held]
            if held == 0 and wanted:
                fresh.setdefault(wanted, []).append(slot)
        if fresh:
            self._prefill_prompts(fresh)
        while todo := [r for r in requests if len(self._ids[self._slot_of[r.session]]) < len(r.ids) - 1]:
            self._extend_slots(todo)

    def _prefill_prompts(self, fresh: dict[tuple[int, ...], list[int]]) -> None:
        """Runs each distinct prompt once, in the smallest row bucket, and copies it to all slots that start with it."""
        prompts = sorted(fresh, key=lambda prompt: fresh[prompt])
        most = self._row_bucket(len(prompts))
        for start in range(0, len(prompts), most):
            part = prompts[start : start + most]
            width = self._width(max(len(prompt) for prompt in part))
            tokens = np.zeros((most, width), np.int32)
            source = np.zeros(self.slots + 1, np.int32)
            lengths = np.zeros(self.slots + 1, np.int32)
            for row, prompt in enumerate(part):
                head = prompt[:width]
                tokens[row, : len(head)] = head
                for slot in fresh[prompt]:
                    source[slot], lengths[slot] = row, len(head)
                    self._ids[slot] = head
            kv = self._prefill(self.params, tokens)
            self._cache = self._spread(self._cache, kv, source, lengths)

    def _extend_slots(self, requests: list[_Request]) -> None:
        """Appends up to one width of missing tokens to each request's slot."""
        most = self._row_bucket(len(requests))
        part = requests[:most]
        missing = []
        for request in part:
            have = len(self._ids[self._slot_of[request.session]])
            missing.append(request.ids[have:-1])
        width = self._width(max(len(ids) for ids in missing))
        tokens = np.zeros((most, width), np.int32)
        slots = np.full(most, self.slots, np.int32)
        offsets, counts = np.zeros(most, np.int32), np.zeros(most, np.int32)
        for row, (request, ids) in enumerate(zip(part, missing, strict=True)):
            slot = self._slot_of[request.session]
            ids = ids[:width]
            tokens[row, : len(ids)] = ids
            slots[row], offsets[row], counts[row] = slot, len(self._ids[slot]), len(ids)
            self._ids[slot] = (*self._ids[slot], *ids)
        self._cache = self._extend(self.params, self._cache, slots, tokens, offsets, counts)

    def _decode_chunk(self, requests: list[_Request]) -> None:
        """Samples up to `chunk` tokens for every request and resolves those that ended."""
        rows = self._row_bucket(len(requests))
        slots = np.full(rows, self.slots, np.int32)
        pending, lengths, left = np.zeros(rows, np.int32), np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        seeds, counters = np.zeros((rows, 2), np.uint32), np.zeros(rows, np.uint32)
        temperature = np.ones(rows, np.float32)
        stops = np.full((rows, _MAX_STOP_IDS), -1, np.int32)
        for row, request in enumerate(requests):
            slot = self._slot_of[request.session]
            slots[row], lengths[row] = slot, len(self._ids[slot])
            pending[row] = request.sampled[-1] if request.sampled else request.prompt[-1]
            room = self.max_length - len(request.prompt)
            left[row] = min(request.params.max_new_tokens, room) - len(request.sampled)
            seeds[row] = request.params.seed >> 32 & 0xFFFFFFFF, request.params.seed & 0xFFFFFFFF
            counters[row] = len(request.sampled)
            temperature[row] = request.params.temperature
            stops[row, : len(request.params.stop_ids)] = request.params.stop_ids
        self._cache, tokens, logprobs = self._decode(
            self.params, self._cache, slots, pending, lengths, left, seeds, counters, temperature, stops
        )
        tokens, logprobs = np.asarray(tokens), np.asarray(logprobs)
        for row, request in enumerate(requests):
            count = int((tokens[row] >= 0).sum())
            new = tokens[row, :count].tolist()
            slot = self._slot_of[request.session]
            self._ids[slot] = (*self._ids[slot], int(pending[row]), *new[:-1])
            request.sampled += new
            request.logprobs += logprobs[row, :count].tolist()
            same = request.spans.pop()[1] if request.spans and request.spans[-1][0] == self.version else 0
            request.spans.append((self.version, same + count))
            stopped = new[-1] in request.params.stop_ids
            if stopped or count == left[row]:
                del self._running[request.session]
                if not request.future.done():  # else its caller was cancelled a moment ago
                    request.future.set_result(request.result("stop" if stopped else "length"))

    def _row_bucket(self, rows: int) -> int:
        """The smallest compiled batch that holds `rows` rows, or the largest there is."""
        return next((bucket for bucket in self._rows if bucket >= rows), self._rows[-1])

    def _width(self, length: int) -> int:
        """The smallest compiled width that holds `length` tokens, or the largest there is."""
        return next((width for width in self._widths if width >= length), self._widths[-1])


def _common_prefix(held: Sequence[int], wanted: Sequence[int]) -> int:
    if tuple(wanted[: len(held)]) == tuple(held):
        return len(held)
    return next(i for i, (a, b) in enumerate(zip(held, (*wanted, None), strict=False)) if a != b)


def _prefill(config: qwen3.Qwen3Config, params: Any, tokens: jax.Array) -> qwen3.KVCache:
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return qwen3.forward(params, config, tokens, positions)[1]


def _batch_axis(cache_leaf: jax.Array) -> int:
    return cache_leaf.ndim - 4  # stacked layers add a leading axis


def _spread(cache: qwen3.KVCache, kv: qwen3.KVCache, source: jax.Array, lengths: jax.Array) -> qwen3.KVCache:
    """Copies row source[slot] of `kv` to the front of every slot with lengths[slot] > 0."""

    def leaf(old: jax.Array, new: jax.Array) -> jax.Array:
        axis, width = _batch_axis(old), min(new.shape[-2], old.shape[-2])
        rows = jnp.take(new[..., :width, :], source, axis=axis)
        front = old[..., :width, :]
        taken = (lengths > 0)[:, None, None, None]
        return old.at[..., :width, :].set(jnp.where(taken, rows, front))

    return jax.tree.map(leaf, cache, kv)


def _extend(
    config: qwen3.Qwen3Config,
    params: Any,
    cache: qwen3.KVCache,
    slots: jax.Array,
    tokens: jax.Array,
    offsets: jax.Array,
    counts: jax.Array,
) -> qwen3.KVCache:
    past = jax.tree.map(lambda leaf: jnp.take(leaf, slots, axis=_batch_axis(leaf)), cache)
    positions = offsets[:, None] + jnp.arange(tokens.shape[1])
    hidden, kv = qwen3.forward(params, config, tokens, positions, past=past, past_lengths=offsets)
    return qwen3.write_cache(cache, kv, slots, offsets, counts, after=hidden)


def sample(
    logits: Float[Array, "R V"], uniform: Float[Array, " R"], block: int = 128
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """Draws a token a row by inverting the cumulative distribution; fp32 throughout.

    One uniform number in [0, 1) per row instead of one Gumbel number per vocabulary entry, and a cumulative sum over
    the blocks' sums and inside the chosen block only: several times faster where the vocabulary is large.

    Args:
        block: vocabulary entries summed first.

    Returns:
        The tokens, each with a probability above 0, and the log of every row's partition function.
    """
    rows, vocab = logits.shape
    top = logits.max(-1, keepdims=True)
    weights = jnp.exp(logits - top)
    blocks = jnp.pad(weights, ((0, 0), (0, -vocab % block))).reshape(rows, -1, block)
    sums = blocks.sum(-1)
    ends = jnp.cumsum(sums, -1)
    total = ends[:, -1:]
    # Rounding must not reach the total: beyond it there is no block.
    target = jnp.minimum(uniform[:, None] * total, jnp.nextafter(total, jnp.zeros_like(total)))
    which = (ends <= target).sum(-1, keepdims=True)
    chosen = jnp.take_along_axis(blocks, which[:, :, None], 1)[:, 0]
    target -= jnp.take_along_axis(ends, which, 1) - jnp.take_along_axis(sums, which, 1)
    inside = (jnp.cumsum(chosen, -1) <= target).sum(-1)
    # Rounded, the target may lie past the block's last entry, or past its last possible one.
    last = block - 1 - jnp.argmax((chosen > 0)[:, ::-1], -1)
    token = which[:, 0] * block + jnp.minimum(inside, last)
    return token.astype(jnp.int32), (top + jnp.log(total))[:, 0]


def _decode(
    config: qwen3.Qwen3Config,
    chunk: int,
    params: Any,
    cache: qwen3.KVCache,
    slots: jax.Array,
    pending: jax.Array,
    lengths: jax.Array,
    left: jax.Array,
    seeds: jax.Array,
    counters: jax.Array,
    temperature: jax.Array,
    stops: jax.Array,
) -> tuple[qwen3.KVCache, jax.Array, jax.Array]:
    """Decodes up to `chunk` tokens a row. Returns the cache, tokens [R, chunk] (-1 after a row's end) and log-probs."""
    rows = slots.shape[0]
    order = jnp.arange(rows)
    local = jax.tree.map(lambda leaf: jnp.take(leaf, slots, axis=_batch_axis(leaf)), cache)
    keys = jax.vmap(lambda seed: jax.random.wrap_key_data(seed, impl="threefry2x32"))(seeds)

    def body(carry: Any) -> Any:
        step, local, pending, lengths, left, tokens, logprobs = carry
        hidden, kv = qwen3.forward(params, config, pending[:, None], lengths[:, None], past=local, past_lengths=lengths)
        logits = qwen3.logits(params, config, hidden[:, 0])
        logits = logits / jnp.where(temperature > 0, temperature, 1.0)[:, None]
        uniform = jax.vmap(lambda key, counter: jax.random.uniform(jax.random.fold_in(key, counter)))(
            keys, counters + step.astype(jnp.uint32)
        )
        drawn, partition = sample(logits, uniform)
        token = jnp.where(temperature > 0, drawn, logits.argmax(-1).astype(jnp.int32))
        logprob = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0] - partition
        active = left > 0
        local = qwen3.write_cache(local, kv, order, lengths, active.astype(jnp.int32), after=hidden)
        stopped = (token[:, None] == stops).any(-1)
        tokens = tokens.at[:, step].set(jnp.where(active, token, -1))
        logprobs = logprobs.at[:, step].set(jnp.where(active, logprob, 0.0))
        lengths = lengths + active
        left = jnp.where(active & ~stopped, left - 1, 0)
        return step + 1, local, token, lengths, left, tokens, logprobs

    start = (
        jnp.int32(0),
        local,
        pending,
        lengths,
        left,
        jnp.full((rows, chunk), -1, jnp.int32),
        jnp.zeros((rows, chunk), jnp.float32),
    )
    _, local, _, _, _, tokens, logprobs = jax.lax.while_loop(
        lambda carry: (carry[0] < chunk) & (carry[4] > 0).any(), body, start
    )

    def put_back(whole: jax.Array, part: jax.Array) -> jax.Array:
        return whole.at[slots].set(part) if _batch_axis(whole) == 0 else whole.at[:, slots].set(part)

    return jax.tree.map(put_back, cache, local), tokens, logprobs
