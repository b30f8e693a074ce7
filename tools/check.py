"""`make check`: every check that needs neither root nor a box. Prints what failed; exit status 1 if anything did."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BIN = Path(sys.executable).parent
CHECKS: dict[str, list[str]] = {
    "ruff": [str(BIN / "ruff"), "check", "--quiet", "."],
    "ruff format": [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
    "mypy": [str(BIN / "mypy"), "--no-error-summary"],
    "import directions": [str(BIN / "lint-imports"), "--no-cache"],
    "schema": [sys.executable, "tools/check_schema.py"],
    "words": [sys.executable, "tools/check_words.py"],
    "documents": [str(BIN / "mkdocs"), "build", "--strict"],
    "golden files": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/golden"],
}


def main() -> int:
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the version range in pyproject.toml excludes it
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda argv: subprocess.run(argv, capture_output=True, text=True, env=env), CHECKS.values())
        failed = 0
        for name, result in zip(CHECKS, results, strict=True):
            print(f"{'ok  ' if result.returncode == 0 else 'FAIL'} {name}", flush=True)
            if result.returncode:
                failed += 1
                print(result.stdout + result.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
