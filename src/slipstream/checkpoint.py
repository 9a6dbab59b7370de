"""Trees on disk: safetensors and a manifest, written aside and renamed, checked before they are used."""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

FORMAT = 1
WEIGHTS, MANIFEST = "state.safetensors", "manifest.json"


class CheckpointError(Exception):
    """A checkpoint that cannot be written or must not be used, and what to do about it."""


def flat(tree: Any) -> dict[str, Any]:
    """Every leaf by its path."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def plain(leaf: Any) -> np.ndarray:
    """A leaf as it is stored; generator keys by their words."""
    return np.asarray(jax.device_get(jax.random.key_data(leaf) if is_key(leaf) else leaf))


def write(folder: Path, tree: Any, **facts: Any) -> None:
    """Store a tree so that `folder` either holds all of it or does not exist."""
    aside = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        data = save({name: plain(leaf) for name, leaf in flat(tree).items()})
        manifest = {"format": FORMAT, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), **facts}
        for name, content in ((WEIGHTS, data), (MANIFEST, json.dumps(manifest, indent=1).encode())):
            with open(aside / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if folder.exists():
            shutil.rmtree(folder)
        aside.rename(folder)
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


def read(folder: Path, like: Any, prefix: str = "") -> Any:
    """The tree stored in `folder`, of exactly the shape of `like`; with `prefix`, the part of it there."""
    facts = manifest(folder)
    try:
        data = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{folder} is damaged: {WEIGHTS} cannot be read") from error
    if hashlib.sha256(data).hexdigest() != facts.get("sha256"):
        raise CheckpointError(f"{folder} is damaged: {WEIGHTS} is not what was written. Use an older checkpoint.")
    try:
        stored = load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{folder} is damaged: {error}") from error
    leaves = []
    for name, leaf in flat(like).items():
        array = stored.get(prefix + name)
        wanted = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
        if array is None or array.shape != wanted.shape or array.dtype != wanted.dtype:
            found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise CheckpointError(
                f"{folder} does not fit this experiment: {prefix + name} should be "
                f"{wanted.dtype}{list(wanted.shape)}, found {found}"
            )
        leaves.append(jax.random.wrap_key_data(jnp.asarray(array)) if is_key(leaf) else array)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
