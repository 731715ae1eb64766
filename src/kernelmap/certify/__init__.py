"""Certificates: a provider run over a generated corpus of its contract, against the oracle."""
