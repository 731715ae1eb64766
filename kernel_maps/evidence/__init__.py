"""Evidence files, one certified provider a file."""
