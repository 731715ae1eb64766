"""``python -m kernelmap``."""

from kernelmap.cli.main import main

main()
