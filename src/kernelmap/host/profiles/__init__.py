"""JSON profiles of machines, one a file; the file name is the profile's name."""
