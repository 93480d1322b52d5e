"""``python -m tunekit``: the same as ``tunekit``."""

from tunekit.cli import main

if __name__ == "__main__":
    main()
