"""git tree ids without git: an independent reckoning for the tests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Union

_Node = dict[str, Union[str, "_Node"]]


def tree_id(manifest: Mapping[str, str]) -> str:
    """Return the git tree id of the directory that a manifest describes.

    A tree's content is one ``MODE NAME NUL ID`` record per entry, sorted by name as if directory names ended in ``/``.
    """
    root: _Node = {}
    for path, entry in manifest.items():
        *parents, name = path.split("/")
        node = root
        for parent in parents:
            child = node.setdefault(parent, {})
            assert isinstance(child, dict)
            node = child
        node[name] = entry
    return _tree_id(root)


def _tree_id(node: _Node) -> str:
    records: list[tuple[bytes, bytes]] = []
    for name, child in node.items():
        encoded = os.fsencode(name)
        if isinstance(child, str):
            mode, object_id = child.split(" ")
            sort_key = encoded
        else:
            mode, object_id = "40000", _tree_id(child)
            sort_key = encoded + b"/"
        records.append((sort_key, mode.encode() + b" " + encoded + b"\0" + bytes.fromhex(object_id)))
    content = b"".join(record for _, record in sorted(records))
    return hashlib.sha1(f"tree {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
