"""A file of TensorBoard events, written synchronously by the calling thread."""

from __future__ import annotations

import functools
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class EventFile:
    """Write TensorBoard events to a new file in a folder.

    A ``tensorboardX.SummaryWriter`` sends each event through a multiprocessing queue to its own
    thread, which costs a pipe, three semaphores and a thread for each trial, and most of the time
    that logging takes; and each ``flush`` waits for the disk. Here, an event is written when it is
    added. The methods that Tune's logger calls are those of a ``SummaryWriter``, and tensorboardX
    builds the events. The file consists of TensorFlow records, each with its size, its data, and a
    checksum of either.

    Args:
        folder: The folder for the file; it is created.
        suffix: The suffix of the file's name.
        purge_step: The step from which on readers discard events in older files of the folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     events = EventFile(Path(folder))
        ...     events.add_scalar("accuracy", 0.9, global_step=1)
        ...     events.close()
        ...     len(list(Path(folder).iterdir()))
        1
    """

    def __init__(self, folder: Path, *, suffix: str = "", purge_step: int | None = None):
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._summary, self._checksum = Event, summary, masked_crc32c
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}{suffix}"
        self._file = open(folder / name, "wb")  # noqa: SIM115
        self.add_event(Event(file_version="brain.Event:2"), purge_step)
        if purge_step is not None:
            self.begin_again(purge_step)

    def add_scalar(self, tag: str, value: Any, **known: Any) -> None:
        """Add a number; ``known``: its ``global_step`` and ``walltime``."""
        self.add("scalar", tag, value, **known)

    def add_histogram(self, tag: str, values: Any, **known: Any) -> None:
        """Add a histogram of numbers."""
        self.add("histogram", tag, values, bins=_bins(), **known)

    def add_image(self, tag: str, image: Any, **known: Any) -> None:
        """Add an image: channel, height, width."""
        self.add("image", tag, image, **known)

    def add_images(self, tag: str, images: Any, **known: Any) -> None:
        """Add images: number, channel, height, width."""
        self.add("image", tag, images, dataformats="NCHW", **known)

    def add_video(self, tag: str, video: Any, **known: Any) -> None:
        """Add videos: number, time, channel, height, width; ``known`` includes ``fps``."""
        self.add("video", tag, video, **known)

    def add(self, kind: str, tag: str, value: Any, **known: Any) -> None:
        """Add a value.

        Args:
            kind: The function in ``tensorboardX.summary`` that builds the event.
            tag: The name of the value.
            value: The value.
            known: Its ``global_step`` and ``walltime``, and more arguments of that function.
        """
        step, walltime = known.pop("global_step", None), known.pop("walltime", None)
        summary = getattr(self._summary, kind)(tag, value, **known)
        self.add_event(self._event(summary=summary), step, walltime)

    def add_event(self, event: Any, step: int | None = None, walltime: float | None = None) -> None:
        """Add a TensorBoard ``Event``."""
        event.wall_time = time.time() if walltime is None else walltime
        if step is not None:
            event.step = int(step)
        data = event.SerializeToString()
        for part in (struct.pack("<Q", len(data)), data):
            self._file.write(part + struct.pack("<I", self._checksum(part)))

    def begin_again(self, step: int) -> None:
        """Make readers discard the run's events from a step on."""
        from tensorboardX.proto.event_pb2 import SessionLog

        self.add_event(self._event(session_log=SessionLog(status=SessionLog.START)), step)

    def flush(self) -> None:
        """Make added events visible to readers.

        The file is not synced to the disk: events that a machine loses are written again from the
        journal.
        """
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@functools.cache
def _bins() -> Sequence[float]:
    """Return TensorFlow's limits of histogram bins."""
    from tensorboardX import SummaryWriter

    bins: Sequence[float] = SummaryWriter(write_to_disk=False).default_bins
    return bins
