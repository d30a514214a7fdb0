"""The time and memory to write the batches of a big corpus, by records and steps: ``make bench-batches``.

A local Spark cuts, samples and sorts synthetic documents of 31 letters, whose tokens are bytes.  Each batch
is then compared with the sample that the run would draw itself.  This needs Java 17.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import results
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config

from tacit.runs.batches import Spark, write_batches
from tacit.runs.config import parse_config
from tacit.runs.plan import make_plan
from tacit.training.streamed import StreamedBatches

LENGTH, BATCH, FILES, END = 32, 1000, 8, 256
MIB = 2**20
SETTINGS = ((250_000, 100), (1_000_000, 10), (1_000_000, 100))
CONFIG = """
[data]
parquet = "{folder}/corpus"
text = "text"
sequence_length = 32
documents = "first"
test_parquet = "{folder}/corpus"
[model]
huggingface = "{folder}/model"
[privacy]
noise_multiplier = 1.0
delta = 1e-9
unit = "document"
adjacency = "add-remove"
records = {records}
sampling = "truncated-poisson"
[optimizer]
learning_rate = 0.1
[training]
batch_size = {batch}
largest_batch = {largest}
steps = {steps}
"""


def make_model(folder: Path) -> None:
    """Write a folder with a byte tokenizer and a configuration."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    GPT2Config(vocab_size=257, n_positions=LENGTH, eos_token_id=END, bos_token_id=END).save_pretrained(folder)


def make_corpus(folder: Path, records: int) -> np.ndarray[Any, Any]:
    """Write documents to Parquet files; return their letters, (N, 31)."""
    letters = np.random.default_rng(0).integers(97, 123, size=(records, LENGTH - 1), dtype=np.uint8)
    folder.mkdir()
    for number, rows in enumerate(np.array_split(letters, FILES)):
        offsets = pa.py_buffer((np.arange(len(rows) + 1, dtype=np.int32) * (LENGTH - 1)).tobytes())
        text = pa.StringArray.from_buffers(len(rows), offsets, pa.py_buffer(rows.tobytes()))
        pq.write_table(pa.table({"text": text}), folder / f"{number}.parquet", row_group_size=1 << 16)
    return letters


def tree_bytes() -> int:
    """Return the memory of this process and its descendants, with shared pages divided between them."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    own, total = {os.getpid()}, 0
    while more := {process for process, parent in parents.items() if parent in own} - own:
        own |= more
    for process in own:
        try:
            text = (Path("/proc") / str(process) / "smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024
    return total


def watched(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of ``work``, and its peak memory in MiB."""
    peak, done = 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not done.wait(0.5):
            peak = max(peak, tree_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        return work(), peak / MIB
    finally:
        done.set()
        thread.join()


def measure(records: int, steps: int, cores: int) -> dict[str, Any]:
    """Write batches, and compare each with the sample of the run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        letters = make_corpus(folder / "corpus", records)
        text = CONFIG.format(
            folder=folder, records=records, steps=steps, batch=BATCH, largest=BATCH + 10 * int(BATCH**0.5)
        )
        config = parse_config(text, "benchmark")
        seconds: dict[str, float] = {}
        last = [time.perf_counter()]

        def progress(title: str, done: int, total: int) -> None:
            if done == total:
                now = time.perf_counter()
                seconds[title] = seconds.get(title, 0.0) + now - last[0]
                last[0] = now

        def spark() -> Spark:
            made = Spark(f"local[{cores}]", progress)
            last[0] = time.perf_counter()
            return made

        start = time.perf_counter()
        written, peak = watched(lambda: write_batches(config, folder / "out", spark, progress=progress))
        whole = time.perf_counter() - start
        batches, plan, rows = StreamedBatches(folder / "out"), make_plan(config), 0
        key, start = batches.generator_for(plan), time.perf_counter()
        for step in range(steps):
            indices = plan.sampling.indices(key, step, records)
            batches.begin(step)
            found = batches.take(indices, seed=0)[0].numpy()
            assert np.array_equal(found[:, :-1].astype(np.uint8) + 33, letters[indices])
            assert (found[:, -1] == END).all()
            rows += len(indices)
        return {
            "records": records,
            "steps": steps,
            "rows": rows,
            "shards": written.shards,
            "bytes": written.bytes,
            "seconds": whole,
            "phases": seconds,
            "peak_mib": peak,
            "read_seconds": time.perf_counter() - start,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all settings, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="next to nothing, to see that it runs")
    parser.add_argument("--out", type=Path, default=results.FOLDER / "batches.json")
    given = parser.parse_args(arguments)
    cores, rows = len(os.sched_getaffinity(0)), []
    for records, steps in ((5_000, 3),) if given.tiny else SETTINGS:
        rows.append(measure(records, steps, cores))
        print(rows[-1], flush=True)  # noqa: T201
        setting = {"length": LENGTH, "batch": BATCH, "cores": cores, "tiny": given.tiny}
        content = {"setting": setting, "rows": rows}
        results.write(given.out, "batches of a big corpus", content, packages=("pyspark", "pyarrow"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
