"""``python scripts/gpu_bench``: see `gpu_bench.main`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu_bench.main import main

sys.exit(main())
