"""``python -m prismgp`` is the command ``prismgp``."""

from prismgp.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
