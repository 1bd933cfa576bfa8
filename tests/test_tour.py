"""pipelines/tour.ipynb, from the first cell to the last, in a kernel of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).parent.parent / "pipelines" / "tour.ipynb"


def kinds(cell: Any) -> set[str]:
    """Of what a cell has put out; a stream may come in any number of pieces."""
    return {output.output_type for output in cell.get("outputs", [])}


@pytest.mark.soak("products")
@pytest.mark.parametrize("epochs", [2, 15])
def test_the_tour_runs_from_encoding_to_figure_and_prediction(tmp_path: Path, epochs: int) -> None:
    notebook = nbformat.read(TOUR, as_version=4)  # type: ignore[no-untyped-call]
    kept = [kinds(cell) for cell in notebook.cells]
    [fitting] = [cell for cell in notebook.cells if "--epochs 15" in cell.source]
    fitting.source = fitting.source.replace("--epochs 15", f"--epochs {epochs}")
    client = NotebookClient(
        notebook,
        timeout=300,
        startup_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    asyncio.run(client.async_execute())  # raises what a cell raises
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) == 8
    streams = "".join(output.text for cell in code for output in cell.outputs if output.output_type == "stream")
    assert "columns: tokens = tokens · tags = slots · labels = intent" in streams
    assert ", 7, 384) float16" in streams
    data = [output.data for cell in code for output in cell.outputs if "data" in output]
    assert [image["image/png"][:4] for image in data if "image/png" in image] == ["iVBO"]
    assert all(fusion in str(data) for fusion in ("last", "linear", "attention"))
    # What a reader sees without running it are outputs of the same kinds.
    assert kept == [kinds(cell) for cell in notebook.cells]
