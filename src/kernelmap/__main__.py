"""``python -m kernelmap``."""

from kernelmap.cli.start import main

main()
