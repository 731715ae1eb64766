"""Mixture-of-experts routers."""
