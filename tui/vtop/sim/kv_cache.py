"""Paged KV cache with prefix caching by block hash, as vLLM keeps it: blocks of 16 tokens, least recently used out."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK_TOKENS = 16


def block_hash(parent: int, tokens: Sequence[int]) -> int:
    """A block's identity: its tokens and everything before them (integers hash alike in every process)."""
    return hash((parent, tuple(tokens)))


class BlockPool:
    """Blocks with reference counts. A free block keeps its content until it is needed for something else."""

    def __init__(self, blocks: int, caching: bool) -> None:
        self.total = blocks
        self.caching = caching
        self._untouched = 0
        """Blocks from this one on were never used."""
        self._free: dict[int, None] = {}
        """Used before and free now, in the order of freeing (a dict keeps it)."""
        self._references: dict[int, int] = {}
        self._by_hash: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that can be handed out."""
        return self.total - self._untouched + len(self._free)

    @property
    def usage(self) -> float:
        """Share 0..1 of the blocks that requests hold."""
        return 1.0 - self.free / self.total if self.total else 0.0

    def allocate(self, count: int) -> list[int] | None:
        """Takes blocks, or None (and takes nothing) where there are not enough."""
        if count > self.free:
            return None
        taken = []
        for _ in range(count):
            if self._untouched < self.total:
                block = self._untouched
                self._untouched += 1
            else:
                block = next(iter(self._free))
                del self._free[block]
                old = self._hash_of.pop(block, None)
                if old is not None and self._by_hash.get(old) == block:
                    del self._by_hash[old]
            self._references[block] = 1
            taken.append(block)
        return taken

    def match(self, hashes: Sequence[int]) -> list[int]:
        """The longest run of cached blocks from the start of a sequence, without taking them."""
        if not self.caching:
            return []
        found = []
        for value in hashes:
            block = self._by_hash.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def free_after(self, blocks: Sequence[int]) -> int:
        """How many blocks would be left to hand out after taking over these cached ones."""
        return self.free - sum(1 for block in blocks if block in self._free)

    def hold(self, blocks: Sequence[int]) -> None:
        """Takes over cached blocks."""
        for block in blocks:
            self._free.pop(block, None)
            self._references[block] = self._references.get(block, 0) + 1

    def remember(self, block: int, value: int) -> None:
        """Notes the content of a full block, so that others can find it."""
        if self.caching and value not in self._by_hash:
            self._by_hash[value] = block
            self._hash_of[block] = value

    def release(self, blocks: Sequence[int]) -> None:
        """Gives blocks back; the end of a sequence becomes reusable before its start."""
        for block in reversed(blocks):
            left = self._references[block] - 1
            if left:
                self._references[block] = left
            else:
                del self._references[block]
                self._free[block] = None

    def forget(self) -> None:
        """Drops every cached content that no request holds (`/reset_prefix_cache`)."""
        self._by_hash.clear()
        self._hash_of.clear()
