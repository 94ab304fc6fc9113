"""Models to try things on: a zoo of published architectures, and users' own files. Importing it imports torch."""

from maniple.base.errors import ModelError
from maniple.models.huggingface import is_config, load_config
from maniple.models.userfile import is_user_file, load_file
from maniple.models.workload import Batch, Size, Step, Workload
from maniple.models.zoo import DTYPES, ZOO, Family, make

__all__ = [
    "DTYPES", "ZOO", "Batch", "Family", "Size", "Step", "Workload", "is_config", "is_user_file", "load", "load_config", "load_file", "make",
]  # fmt: skip


def load(
    text: str,
    *,
    batch: int | None = None,
    seq: int | None = None,
    dtype: str = "float32",
    dropout: float = 0.0,
    seed: int = 0,
    fake: bool = False,
) -> Workload:
    """Return the workload that a command line names: a model of the zoo, `hf:PATH`, or `FILE.py:FUNCTION`.

    The arguments are those of `make`; a user's own file decides batch, seq and dropout itself.

    Raises:
        ModelError: if there is no such model, or it cannot be made so.
    """
    if is_config(text):
        return load_config(text, batch=batch, seq=seq, dtype=dtype, dropout=dropout, seed=seed, fake=fake)
    if not is_user_file(text):
        return make(text, batch=batch, seq=seq, dtype=dtype, dropout=dropout, seed=seed, fake=fake)
    if batch is not None or seq is not None or dropout:
        raise ModelError(f"{text} makes its own model and batch: batch, seq and dropout are for models of the zoo", hint="change the file")
    return load_file(text, dtype=dtype, seed=seed, fake=fake)
