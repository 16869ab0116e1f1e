"""What every stored result says of how it was made."""

ABOUT = {
    "machine": {"processor": "abacus", "threads": 1, "gpu": None},
    "versions": {"torch": "1"},
    "device": "cpu",
    "prismgp": "0",
    "commit": None,
    "source": "x",
    "jobs": 1,
}
