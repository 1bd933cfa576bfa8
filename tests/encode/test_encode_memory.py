"""Memory while a plan is made does not grow with the source: sixteen times the examples, the same peak."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FEW, MANY = 1_000, 16_000
CHARACTERS = 2_000  # an example: 32 MB in all, in words too long to be more than one sub-token each
BOUND_MB = 24

# The small source first: the peak that the large one adds is counted, not the program's own.
PLAN = """
import resource, sys
from pathlib import Path
from fusionkit.encode.job import make_job
from fusionkit.encode.plan import write_plan
from fusionkit.encoder import load_encoder
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec

out, model, *paths = sys.argv[1:]
encoder = load_encoder(model, device="cpu")
peaks = []
for path in paths:
    source = open_source(path)
    place = Path(out) / f"{Path(path).stem}.store"
    write_plan(make_job(source, guess_columns(source), place, EncodeSpec(rows="mean"), encoder))
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(source.splits["train"].num_rows, (peaks[1] - peaks[0]) / 1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux alone")
@pytest.mark.soak("products")
def test_sixteen_times_the_examples_take_no_more_memory(folder: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{count}.jsonl" for count in (FEW, MANY)]
    for path, count in zip(paths, (FEW, MANY), strict=True):
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": f"{i} {'x' * CHARACTERS}"}) + "\n" for i in range(count))
    env = {**os.environ, "TMPDIR": str(tmp_path), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-c", PLAN, str(tmp_path), str(folder), *map(str, paths)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    planned, grown = done.stdout.split()
    assert int(planned) == MANY
    assert float(grown) < BOUND_MB
