"""Trees on disk: safetensors and a manifest, streamed aside and renamed, checked before they are used."""

import errno
import hashlib
import itertools
import json
import math
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, safe_open

from .files import json_text, sync_folder, write_whole

FORMAT = 1
WEIGHTS, MANIFEST = "state.safetensors", "manifest.json"
TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
"""What safetensors calls them."""


class CheckpointError(Exception):
    """A checkpoint that cannot be written or must not be used, and what to do about it."""


def flat(tree: PyTree) -> dict[str, Any]:
    """Every leaf by its path."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def to_numpy(leaf: Any) -> np.ndarray:
    """A leaf as it is stored; generator keys by their words."""
    return np.asarray(jax.device_get(jax.random.key_data(leaf) if is_key(leaf) else leaf))


def pieces(leaf: Any) -> Iterator[np.ndarray]:
    """A leaf in the order of its numbers, a piece after the other: the host never holds a large one a second time."""
    if not isinstance(leaf, jax.Array) or is_key(leaf) or leaf.is_fully_replicated:
        yield to_numpy(leaf)
        return
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    if all(part == slice(None) for shard in shards for part in shard.index[1:]):
        yield from (np.asarray(shard.data) for shard in shards)
    else:  # split by another axis than the first, as with several seeds
        yield from (to_numpy(leaf[row]) for row in range(leaf.shape[0]))


def header(leaves: dict[str, Any]) -> bytes:
    """What stands before the numbers in a safetensors file."""
    rows, end = {}, 0
    for name, leaf in leaves.items():
        stored = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
        size = math.prod(stored.shape) * np.dtype(stored.dtype).itemsize
        rows[name] = {
            "dtype": TYPES[np.dtype(stored.dtype).name], "shape": list(stored.shape), "data_offsets": [end, end + size],
        }  # fmt: skip
        end += size
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write(folder: Path, tree: PyTree, **facts: Any) -> None:
    """Store a tree so that `folder` either holds all of it or does not exist, even if the power fails."""
    aside = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        leaves, digest, size = flat(tree), hashlib.sha256(), 0
        with open(aside / WEIGHTS, "wb") as file:
            for part in itertools.chain([header(leaves)], *(pieces(leaf) for leaf in leaves.values())):
                data = part if isinstance(part, bytes) else np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
                file.write(data)
                digest.update(data)
                size += len(data)
            file.flush()
            os.fsync(file.fileno())
        manifest = {"format": FORMAT, "sha256": digest.hexdigest(), "bytes": size, **facts}
        write_whole(aside / MANIFEST, json_text(manifest).encode())
        sync_folder(aside)
        if folder.exists():
            shutil.rmtree(folder)
        aside.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise CheckpointError(f"could not write {folder}: {reason}. Earlier checkpoints are untouched.") from error


def manifest(folder: Path) -> dict[str, Any]:
    """The facts stored with a checkpoint."""
    try:
        facts = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is not a checkpoint or is damaged: its manifest cannot be read") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise CheckpointError(f"{folder} was written by another version: its format is not {FORMAT}")
    return facts


def read(folder: Path, like: PyTree, prefix: str = "") -> Any:
    """The tree stored in `folder`, of exactly the shape of `like`; with `prefix`, the part of it there."""
    facts = manifest(folder)
    try:
        with open(folder / WEIGHTS, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{folder} is damaged: {WEIGHTS} cannot be read") from error
    if digest != facts.get("sha256"):
        raise CheckpointError(f"{folder} is damaged: {WEIGHTS} is not what was written. Use an older checkpoint.")
    try:
        with safe_open(folder / WEIGHTS, "np") as stored:
            return _filled(folder, like, prefix, stored)
    except SafetensorError as error:
        raise CheckpointError(f"{folder} is damaged: {error}") from error


def _filled(folder: Path, like: PyTree, prefix: str, stored: Any) -> Any:
    leaves, names = [], set(stored.keys())
    for name, leaf in flat(like).items():
        array = stored.get_tensor(prefix + name) if prefix + name in names else None
        wanted = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
        if array is None or array.shape != wanted.shape or array.dtype != wanted.dtype:
            found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise CheckpointError(
                f"{folder} does not fit this experiment: {prefix + name} should be "
                f"{wanted.dtype}{list(wanted.shape)}, found {found}"
            )
        leaves.append(jax.random.wrap_key_data(jnp.asarray(array)) if is_key(leaf) else array)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
