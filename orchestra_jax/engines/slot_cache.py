"""Keys and values of sequences that are sampled side by side, and the compiled steps that fill and extend them.

In a slot some leading tokens are cached; the sequence's last token, the next input, is not: it is the last token of the
prompt or the last sampled one.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from orchestra_jax.engines.base import SamplingParams
from orchestra_jax.models import decoder
from orchestra_jax.models.base import DecoderConfig, KVCache

MAX_STOP_IDS = 4
_SHORTEST_WINDOW = 64
_FINE = range(512, 1025)  # a longer one is a GPU's, where each takes half a minute to compile


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence to extend."""

    slot: int  # its keys and values
    ids: tuple[int, ...]  # the whole sequence
    sampled: int  # how many of them were sampled under these `params`
    left: int  # tokens to sample at most
    params: SamplingParams


class SlotCache:
    """A fixed number of slots in one key-value cache, run over few fixed shapes.

    Prompts that several sequences share are prefilled once; later turns extend a slot by what is new; decoding runs
    over the smallest row bucket that holds the sequences, and over the part of the cache that the longest one needs.

    Args:
        slots: sequences held at once.
        max_length: longest sequence in tokens.
        chunk: tokens per call of `decode`.
        widths: compiled widths of a prefill or an extension; a longer one is done in several passes.
    """

    def __init__(self, config: DecoderConfig, slots: int, max_length: int, chunk: int, widths: Sequence[int]) -> None:
        self.config, self.slots, self.max_length, self.chunk = config, slots, max_length, chunk
        self._widths = sorted({min(width, max_length) for width in widths})
        self._rows = sorted({max(1, slots // 16), max(1, slots // 4), slots})
        self._windows = _windows(max_length)
        self._free = list(range(slots))
        self.reset()

    def reset(self) -> None:
        """Make a new, empty cache on the same slots, after an error that may have used up the old one."""
        # One spare slot takes the writes of padding rows.
        self._cache = decoder.empty_cache(self.config, self.slots + 1, self.max_length)
        self.forget()

    def forget(self) -> None:
        """Mark every slot's content as void: it belongs to other weights."""
        self._ids: list[tuple[int, ...]] = [()] * (self.slots + 1)  # tokens whose keys and values the slot holds

    @property
    def free(self) -> int:
        """Number of slots that no sequence holds."""
        return len(self._free)

    def take(self) -> int:
        """Take the lowest free slot."""
        self._free.sort()
        return self._free.pop(0)

    def release(self, slot: int) -> None:
        """Give a slot back; its content is void."""
        self._ids[slot] = ()
        self._free.append(slot)

    def held(self, slot: int, ids: Sequence[int]) -> int:
        """Return how many leading tokens of `ids`, without the last one, the slot holds."""
        return _common_prefix(self._ids[slot], ids[:-1])

    def fill(self, params: Any, rows: Sequence[Row]) -> None:
        """Bring every slot to hold all but the last token of its sequence."""
        fresh: dict[tuple[int, ...], list[int]] = {}
        for row in rows:
            wanted, held = row.ids[:-1], self.held(row.slot, row.ids)
            self._ids[row.slot] = wanted[:held]
            if held == 0 and wanted:
                fresh.setdefault(wanted, []).append(row.slot)
        if fresh:
            self._prefill_prompts(params, fresh)
        while todo := [row for row in rows if len(self._ids[row.slot]) < len(row.ids) - 1]:
            self._extend_slots(params, todo)

    def decode(self, params: Any, rows: Sequence[Row]) -> list[tuple[list[int], list[float]]]:
        """Sample up to `chunk` tokens for every row, whose slots are filled; return the tokens and their log-probs."""
        count = _bucket(self._rows, len(rows))
        slots = np.full(count, self.slots, np.int32)
        pending, lengths, left = np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int32)
        seeds, counters = np.zeros((count, 2), np.uint32), np.zeros(count, np.uint32)
        temperature = np.ones(count, np.float32)
        stops = np.full((count, MAX_STOP_IDS), -1, np.int32)
        for i, row in enumerate(rows):
            slots[i], lengths[i], pending[i] = row.slot, len(row.ids) - 1, row.ids[-1]
            left[i], counters[i] = row.left, row.sampled
            seeds[i] = row.params.seed >> 32 & 0xFFFFFFFF, row.params.seed & 0xFFFFFFFF
            temperature[i] = row.params.temperature
            stops[i, : len(row.params.stop_ids)] = row.params.stop_ids
        window = _bucket(self._windows, int(lengths.max()) + self.chunk)
        sampling = (slots, pending, lengths, left, seeds, counters, temperature, stops)
        self._cache, tokens, logprobs = _decode(self.config, self.chunk, window, params, self._cache, *sampling)
        tokens, logprobs = np.asarray(tokens), np.asarray(logprobs)
        found = []
        for i, row in enumerate(rows):
            new = int((tokens[i] >= 0).sum())
            sampled: list[int] = tokens[i, :new].tolist()
            self._ids[row.slot] = (*row.ids, *sampled[:-1])
            found.append((sampled, logprobs[i, :new].tolist()))
        return found

    def _prefill_prompts(self, params: Any, fresh: dict[tuple[int, ...], list[int]]) -> None:
        """Run each distinct prompt once, in full row buckets, and copy it to all slots that start with it."""
        prompts = sorted(fresh, key=lambda prompt: fresh[prompt])
        # Two passes of four long prompts cost half of one that pads eight to sixteen.
        most = max((size for size in self._rows if size <= len(prompts)), default=self._rows[0])
        for start in range(0, len(prompts), most):
            part = prompts[start : start + most]
            width = _bucket(self._widths, max(len(prompt) for prompt in part))
            tokens = np.zeros((most, width), np.int32)
            source = np.zeros(self.slots + 1, np.int32)
            lengths = np.zeros(self.slots + 1, np.int32)
            for row, prompt in enumerate(part):
                head = prompt[:width]
                tokens[row, : len(head)] = head
                for slot in fresh[prompt]:
                    source[slot], lengths[slot] = row, len(head)
                    self._ids[slot] = head
            kv = _prefill(self.config, params, tokens)
            self._cache = _spread(self._cache, kv, source, lengths)

    def _extend_slots(self, params: Any, rows: Sequence[Row]) -> None:
        """Append up to one width of missing tokens to each row's slot: half of the rows are then complete."""
        most = _bucket(self._rows, len(rows))
        part = rows[:most]
        missing = [row.ids[len(self._ids[row.slot]) : -1] for row in part]
        width = _bucket(self._widths, sorted(map(len, missing))[len(missing) // 2])  # one long row must not widen all
        tokens = np.zeros((most, width), np.int32)
        slots = np.full(most, self.slots, np.int32)
        offsets, counts = np.zeros(most, np.int32), np.zeros(most, np.int32)
        for i, (row, ids) in enumerate(zip(part, missing, strict=True)):
            ids = ids[:width]
            tokens[i, : len(ids)] = ids
            slots[i], offsets[i], counts[i] = row.slot, len(self._ids[row.slot]), len(ids)
            self._ids[row.slot] = (*self._ids[row.slot], *ids)
        window = _bucket(self._windows, int(offsets.max()))
        self._cache = _extend(self.config, window, params, self._cache, slots, tokens, offsets, counts)


def _bucket(sizes: Sequence[int], needed: int) -> int:
    """Return the smallest of the compiled sizes (ascending) that holds `needed`, or the largest there is."""
    return next((size for size in sizes if size >= needed), sizes[-1])


def _windows(max_length: int) -> list[int]:
    """Return how much of the cache a step may be compiled for: all of it, a half, a quarter, ..., ascending."""
    windows = [max_length]
    while windows[0] >= 2 * _SHORTEST_WINDOW:
        whole, half = windows[0], -(-windows[0] // 2)
        if half in _FINE:  # reading a window takes longer than the matrices do
            windows[:0] = [-(-whole * eighths // 8) for eighths in (5, 6, 7)]
        windows.insert(0, half)
    return windows


def _common_prefix(held: Sequence[int], wanted: Sequence[int]) -> int:
    if tuple(wanted[: len(held)]) == tuple(held):
        return len(held)
    return next(i for i, (a, b) in enumerate(zip(held, (*wanted, None), strict=False)) if a != b)


@functools.partial(jax.jit, static_argnums=0)
def _prefill(config: DecoderConfig, params: Any, tokens: jax.Array) -> KVCache:
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return decoder.forward(params, config, tokens, positions)[1]


def _batch_axis(cache_leaf: jax.Array) -> int:
    return cache_leaf.ndim - 4  # stacked layers add a leading axis


@functools.partial(jax.jit, donate_argnums=0)
def _spread(cache: KVCache, kv: KVCache, source: jax.Array, lengths: jax.Array) -> KVCache:
    """Copy row source[slot] of `kv` to the front of every slot with lengths[slot] > 0."""

    def leaf(old: jax.Array, new: jax.Array) -> jax.Array:
        axis, width = _batch_axis(old), min(new.shape[-2], old.shape[-2])
        rows = jnp.take(new[..., :width, :], source, axis=axis)
        front = old[..., :width, :]
        taken = (lengths > 0)[:, None, None, None]
        return old.at[..., :width, :].set(jnp.where(taken, rows, front))

    return jax.tree.map(leaf, cache, kv)


def _fronts(cache: KVCache, slots: jax.Array, window: int) -> KVCache:
    """Return the first `window` entries of these slots."""
    return jax.tree.map(lambda leaf: jnp.take(leaf[..., :window, :], slots, axis=_batch_axis(leaf)), cache)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _extend(
    config: DecoderConfig,
    window: int,
    params: Any,
    cache: KVCache,
    slots: jax.Array,
    tokens: jax.Array,
    offsets: jax.Array,
    counts: jax.Array,
) -> KVCache:
    past = _fronts(cache, slots, window)
    positions = offsets[:, None] + jnp.arange(tokens.shape[1])
    hidden, kv = decoder.forward(params, config, tokens, positions, past=past, past_lengths=offsets)
    return decoder.write_cache(cache, kv, slots, offsets, counts, after=hidden)


def sample(
    logits: Float[Array, "R V"], uniform: Float[Array, " R"], block: int = 128
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """Draw a token a row by inverting the cumulative distribution; fp32 throughout.

    One uniform number in [0, 1) per row instead of one Gumbel number per vocabulary entry, and a cumulative sum over
    the blocks' sums and inside the chosen block only: several times faster where the vocabulary is large.

    Returns the tokens, each with a probability above 0, and the log of every row's partition function.
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


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=4)
def _decode(
    config: DecoderConfig,
    chunk: int,
    window: int,
    params: Any,
    cache: KVCache,
    slots: jax.Array,  # [R], the place of each row in the cache
    pending: jax.Array,  # [R], the row's last token, which is not in the cache yet
    lengths: jax.Array,  # [R], tokens that are
    left: jax.Array,  # [R], tokens that may still be sampled; 0 for padding
    seeds: jax.Array,  # [R, 2], halves of the row's 64-bit seed
    counters: jax.Array,  # [R], tokens sampled before: the n-th draw of a seed is the same in any batch
    temperature: jax.Array,  # [R]
    stops: jax.Array,  # [R, MAX_STOP_IDS], ids that end a row; -1 for none
) -> tuple[KVCache, jax.Array, jax.Array]:
    """Decode up to `chunk` tokens a row. Returns the cache, tokens [R, chunk] (-1 after a row's end) and log-probs."""
    rows = slots.shape[0]
    order = jnp.arange(rows)
    local = _fronts(cache, slots, window)
    keys = jax.vmap(lambda seed: jax.random.wrap_key_data(seed, impl="threefry2x32"))(seeds)

    def body(carry: Any) -> Any:
        step, local, pending, lengths, left, tokens, logprobs = carry
        hidden, kv = decoder.forward(
            params, config, pending[:, None], lengths[:, None], past=local, past_lengths=lengths
        )
        logits = decoder.logits(params, config, hidden[:, 0])
        logits = logits / jnp.where(temperature > 0, temperature, 1.0)[:, None]
        uniform = jax.vmap(lambda key, counter: jax.random.uniform(jax.random.fold_in(key, counter)))(
            keys, counters + step.astype(jnp.uint32)
        )
        drawn, partition = sample(logits, uniform)
        token = jnp.where(temperature > 0, drawn, logits.argmax(-1).astype(jnp.int32))
        logprob = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0] - partition
        active = left > 0
        local = decoder.write_cache(local, kv, order, lengths, active.astype(jnp.int32), after=hidden)
        stopped = (token[:, None] == stops).any(-1)
        tokens = tokens.at[:, step].set(jnp.where(active, token, -1))
        logprobs = logprobs.at[:, step].set(jnp.where(active, logprob, 0.0))
        lengths = lengths + active
        left = jnp.where(active & ~stopped, left - 1, 0)
        return step + 1, local, token, lengths, left, tokens, logprobs

    drawn, logprobs = jnp.full((rows, chunk), -1, jnp.int32), jnp.zeros((rows, chunk), jnp.float32)
    start = (jnp.int32(0), local, pending, lengths, left, drawn, logprobs)
    _, local, _, _, _, tokens, logprobs = jax.lax.while_loop(
        lambda carry: (carry[0] < chunk) & (carry[4] > 0).any(), body, start
    )

    def put_back(whole: jax.Array, part: jax.Array) -> jax.Array:
        if _batch_axis(whole) == 0:
            return whole.at[slots, :, :window].set(part)
        return whole.at[:, slots, :, :window].set(part)

    return jax.tree.map(put_back, cache, local), tokens, logprobs
