"""Kernel map files, one provider a file."""
