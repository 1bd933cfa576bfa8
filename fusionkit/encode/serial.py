"""Step two in this process: parts one after another, with reading and writing in threads of their own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fusionkit.encode.batches import Part, PartInput
from fusionkit.encode.job import EncodeProgress
from fusionkit.encode.part_records import PartRecord
from fusionkit.encode.parts import NotFiniteError, PartEncoder
from fusionkit.encoder import Encoder
from fusionkit.errors import StoppedError
from fusionkit.places import Place

# The map over parts: it encodes these parts of a planned store and yields the record of each.
PartsRunner = Callable[[Place, dict[str, Any], list[Part], EncodeProgress], Iterator[PartRecord]]

# One part is computed while another is written; then the encoder waits. With a third buffer, the peak of memory would
# depend on the speed of the disk.
BUFFERS = 2


def serial_parts(encoder: Encoder, stop: Callable[[], bool]) -> PartsRunner:
    """A map over parts that encodes one part after another.

    The next part is read and the last one is written while a part is computed.

    Args:
        stop: asked before each part; True ends the work with :class:`StoppedError`.
    """

    def run(store: Place, plan: dict[str, Any], parts: list[Part], progress: EncodeProgress) -> Iterator[PartRecord]:
        part_encoder = PartEncoder(store, plan, encoder, BUFFERS)
        waiting = deque(parts)
        writes: deque[tuple[Part, Future[PartRecord]]] = deque()

        def next_record() -> PartRecord:
            part, future = writes.popleft()
            try:
                return future.result()
            except NotFiniteError as error:  # encoded again here: the writer's thread must not use the encoder
                raise part_encoder.not_finite(part) from error

        with ThreadPoolExecutor(1, "writer") as writer, ThreadPoolExecutor(1, "reader") as reader:
            reads: deque[Future[PartInput]] = deque(reader.submit(part_encoder.read, part) for part in parts[:1])
            while waiting and not stop():
                start = time.perf_counter()
                part, inputs = waiting.popleft(), reads.popleft().result()
                if waiting:
                    reads.append(reader.submit(part_encoder.read, waiting[0]))
                computed = part_encoder.compute(part, inputs, start, progress.advance)
                writes.append((part, writer.submit(part_encoder.write, computed)))
                # A failed write ends the work now, not after the last part.
                while writes and writes[0][1].done():
                    yield next_record()
            while writes:
                yield next_record()
        if waiting:
            raise StoppedError(
                f"stopped with {len(waiting)} of {len(parts)} parts of {store} to do",
                remedy="run the same command again: finished parts are kept",
            )

    return run
