"""dlt's ``sql_table`` from SOURCE into TARGET (URLs in the environment): merged by its key, with a cursor, into schema ``dlt``.

Run by a Python that has dlt. Its state is in HOME and at the target, as dlt has it.
"""

from __future__ import annotations

import os

import dlt
from dlt.sources.sql_database import sql_table


def main() -> None:
    source = sql_table(
        credentials=os.environ["SOURCE"],
        table="film_ratings",
        backend="pyarrow",
        chunk_size=50_000,
        incremental=dlt.sources.incremental("updated_at"),
        primary_key="id",
        write_disposition="merge",
    )
    destination = dlt.destinations.postgres(os.environ["TARGET"])
    dlt.pipeline("film_ratings", destination=destination, dataset_name="dlt").run(source)


if __name__ == "__main__":
    main()
