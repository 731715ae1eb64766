"""Activation quantizers: vector code that writes the layouts which the dot kernels read."""
