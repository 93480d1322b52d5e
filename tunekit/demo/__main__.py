"""``python -m tunekit.demo``: the same as ``tunekit demo``."""

import sys

from tunekit.demo.command import demo
from tunekit.errors import TunekitError

if __name__ == "__main__":
    try:
        demo(prog_name="python -m tunekit.demo")
    except TunekitError as error:
        sys.exit(f"Error: {error}")
