"""Sweeps as live pages in the browser: ``tunekit serve``."""

from tunekit.extras import extra

with extra("serve"):  # first, because it includes the extra report
    import starlette as starlette
    import uvicorn as uvicorn

from tunekit.board.serve.server import serve

__all__ = ["serve"]
