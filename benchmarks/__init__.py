"""How fast Forbear is, as ratios measured in one run: `python -m benchmarks`. See README.md."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = [str(ROOT / layer) for layer in ("rules", "storage", "tools", "server")]
sys.path[:0] = [path for path in (str(ROOT), *LAYERS) if path not in sys.path]
