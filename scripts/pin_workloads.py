"""Write the hashes of all workload prompts into `pylucebox/ab/workloads/pins.json`.

    python scripts/pin_workloads.py          # after a deliberate change of a recipe or of the corpus
    python scripts/pin_workloads.py --check  # exits with 1 if the file would change

Figures measured with other prompts cannot be compared with new ones, so a change here belongs into the changelog.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pylucebox import Engine
from pylucebox.ab import workloads
from pylucebox.ab.workloads._catalog import RECIPES, build_all
from pylucebox.ab.workloads._desk import Desk, Tokenize, fingerprint
from pylucebox.ab.workloads._pins import STAND_IN_N_CTX, prompt_hashes, stand_in_tokenize

PINS = Path(workloads.__file__).with_name("pins.json")


def pinned(tokenize: Tokenize, n_ctx: int, *, is_chat: bool) -> dict[str, Any]:
    """Return the entry of one tokenizer."""
    made = build_all(RECIPES, Desk(tokenize=tokenize, n_ctx=n_ctx, is_chat=is_chat))
    return {
        "tokenizer": fingerprint(tokenize),
        "n_ctx": n_ctx,
        "prompts": {workload.name: prompt_hashes(workload) for workload in made},
    }


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    with Engine.demo(mtp="off", n_ctx=256) as engine:
        n_ctx = engine.info.n_ctx_train
        content = {
            "built-in": pinned(engine.tokenize, n_ctx, is_chat=False),
            "stand-in": pinned(stand_in_tokenize, STAND_IN_N_CTX, is_chat=True),
        }
    text = json.dumps(content, indent=1) + "\n"
    if args.check:
        return 0 if PINS.read_text(encoding="utf-8") == text else 1
    PINS.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
