"""The version of tunekit."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
