"""How do many machines write batches? By Spark, which cuts the parts and sorts their drawn records by step.

Three passes: each part is cut into records; this process draws the batches, so that the key leaves it for no
other machine; each part sends its drawn records to the shard of their step, sorted there and written.  All
machines must see the corpus, the tokenizer and the folder of the batches under the same paths, and have Tacit
installed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

from tacit.datasets.parquet import CorpusPart
from tacit.errors import InvalidInput, MissingExtra, TacitError, without_values
from tacit.runs.batch_parts import Counts, Rule, cut_part, drawn_of_part, shard_row, write_shards
from tacit.runs.load import Progress
from tacit.training.data.streamed import Shard

_LOOKS = 0.2  # seconds between two looks at the progress of a job


@final
class Spark:
    """A Spark session; ``master`` is its address, such as "local[4]", or None for the configured one.

    Raises:
        MissingExtra: pyspark is not installed.
    """

    def __init__(self, master: str | None, progress: Progress) -> None:
        try:
            from pyspark.sql import SparkSession
        except ImportError:
            raise MissingExtra("pyspark", "spark", "tacit batches") from None
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName("tacit batches")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        self._session = (builder if master is None else builder.master(master)).getOrCreate()
        self._session.sparkContext.setLogLevel("ERROR")
        self._progress = progress

    def cut(self, rule: Rule, parts: Sequence[CorpusPart], work: Path) -> list[Counts]:
        """Cut all parts into records."""

        def one(numbered: tuple[int, CorpusPart]) -> Counts | TacitError:
            try:
                return cut_part(rule, numbered[1], numbered[0], work)
            except TacitError as problem:  # Spark would wrap it in a trace of Java
                return problem

        rows = self._session.sparkContext.parallelize([*enumerate(parts)], len(parts)).map(one)
        found = self._watched("cutting documents", rows.collect)
        for answer in found:
            if isinstance(answer, TacitError):
                raise answer
        return found

    def write(
        self, firsts: Sequence[int], length: int, each: int, steps: int, work: Path, out: Path
    ) -> list[Shard]:
        """Write the drawn records to shards of ``each`` steps; ``firsts`` are the parts' first positions."""

        def drawn(numbers: Iterator[Any]) -> Iterator[Any]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from drawn_of_part(number, firsts[number], work, length)

        def written(batches: Iterator[Any]) -> Iterator[Any]:
            for shard in write_shards(batches, each, steps, out):
                yield shard_row(shard)

        from pyspark.sql.functions import col, floor

        session, shards = self._session, -(-steps // each)
        numbers = session.sparkContext.parallelize([(n,) for n in range(len(firsts))], len(firsts))
        rows = numbers.toDF("part int").mapInArrow(
            drawn, "step int, position long, length int, tokens array<int>"
        )
        sorted_rows = rows.repartition(shards, floor(col("step") / each)).sortWithinPartitions(
            "step", "position"
        )
        answers = sorted_rows.mapInArrow(written, "name string, first int, steps int, sha256 string")
        return [Shard(**row.asDict()) for row in self._watched("writing batches", answers.collect)]

    def _watched(self, title: str, job: Callable[[], list[Any]]) -> list[Any]:
        """Run a job in a thread of its own, and tell how many of its tasks are done."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        found: list[Any] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                found.extend(job())
            except BaseException as problem:  # noqa: BLE001 (raised again below)
                failed.append(problem)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        tracker = self._session.sparkContext.statusTracker()
        while thread.is_alive():
            thread.join(_LOOKS)
            for stage in tracker.getActiveStageIds():
                if (info := tracker.getStageInfo(stage)) is not None:
                    self._progress(title, info.numCompletedTasks, info.numTasks)
        if failed:
            if isinstance(failed[0], PySparkException | Py4JError):
                raise InvalidInput(
                    f"Spark failed while {title}: {without_values(failed[0])}. Its text is left out, as it "
                    "may hold a document; it is in Spark's log. Mend the cause and call the command again."
                ) from None
            raise failed[0]
        self._progress(title, 1, 1)
        return found

    def stop(self) -> None:
        """End the session."""
        self._session.stop()
