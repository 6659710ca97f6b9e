"""Coverage-guided fuzzing of the GGUF reader and the search for MTP files: whatever lies on the disk, only LoadError.

Run by ``scripts/fuzz reader``; needs atheris. The first byte of an input says what the rest is: one file, a model with
a file beside it, or two splits.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

with atheris.instrument_imports(include=["pylucebox"]):
    from pylucebox import _gguf_parse, _sidecar
    from pylucebox._errors import LoadError

from _gguf_bytes import I32, STRING, TABLES, TRUNK, U16, Typed, gguf, metadata, mtp_block, write_model

ALONE, BESIDE, SPLITS = range(3)

FOLDER = Path(tempfile.mkdtemp(prefix="lucebox-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
MODEL = write_model(FOLDER / "beside" / "model.gguf")


def seeds() -> list[bytes]:
    """Return inputs to begin with: files in order, of every kind."""
    model = gguf(metadata(n_nextn=0), TRUNK)
    inside = gguf(metadata(n_nextn=1), {**TRUNK, **mtp_block()})
    sidecar = gguf(metadata(n_nextn=1), {**TABLES, **mtp_block()})
    borrowing = gguf(metadata(n_nextn=1), mtp_block())
    odd = gguf({"numbers": Typed(I32, [1] * 5000), "texts": Typed(STRING, ["", "a" * 300]), "yes": True, "x": 0.5})
    splits = [
        gguf({"split.no": Typed(U16, number), "split.count": Typed(U16, 2), **keys}, {f"t{number}": [4]})
        for number, keys in enumerate((metadata(n_nextn=0), {}))
    ]
    half = max(map(len, splits))
    return [
        *(bytes([ALONE]) + content for content in (model, inside, sidecar, odd)),
        *(bytes([BESIDE]) + content for content in (sidecar, borrowing, model)),
        bytes([SPLITS]) + splits[0].ljust(half, b"\0") + splits[1].ljust(half, b"\0"),
    ]


def try_input(data: bytes) -> None:
    """Read what the input describes."""
    kind, content = (data[0] % 3, data[1:]) if data else (ALONE, b"")
    try:
        if kind == SPLITS:
            half = len(content) // 2
            paths = [FOLDER / f"splits-{number:05}-of-00002.gguf" for number in (1, 2)]
            for path, part in zip(paths, (content[:half], content[half:]), strict=True):
                path.write_bytes(part)
            _sidecar.find_sidecar(paths[1])
            return
        # without a file first: most inputs end here, and the disk is slow
        _gguf_parse.parse_header(io.BytesIO(content), len(content), Path("input"))
        path = FOLDER / "alone.gguf" if kind == ALONE else FOLDER / "beside" / "mtp-model.gguf"
        path.write_bytes(content)
        _sidecar.find_sidecar(path if kind == ALONE else MODEL)
        if kind == BESIDE:
            _sidecar.find_sidecar(MODEL, path)
    except LoadError as error:
        if not error.path or not error.seen:
            raise AssertionError(f"an error without file or cause: {error!r}") from error


def main() -> None:
    """Write the seeds into the corpus folder, which is the last argument, and run."""
    corpus = Path(sys.argv[-1])
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, try_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
