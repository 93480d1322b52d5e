"""``python -m tunekit.demo``: the same as ``tunekit demo``."""

from tunekit.demo.command import demo

if __name__ == "__main__":
    demo(prog_name="python -m tunekit.demo")
