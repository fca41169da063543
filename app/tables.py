"""Parquet and Arrow files: a case a row in, a replayed row a row out.

pyarrow is an extra (`pip install 'vllm-admission[arrow]'`), imported when a file asks for it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from app.errors import MalformedDocument, Problem, UnusableInput

# Rows are read in batches of about this size, or one by one where they are larger.
_BATCH_BYTES: Final = 8 * 1024 * 1024
_MOST_ROWS: Final = 1024
_ROWS_A_GROUP: Final = 65_536
_PARQUET: Final = (".parquet", ".pq")
_ARROW: Final = (".arrow", ".feather", ".ipc")
_MAGIC: Final = {b"PAR1": ".parquet", b"ARROW1": ".arrow"}
# Columns whose text is itself a value; the text of others may be JSON.
_PLAIN_TEXT: Final = ("id", "vllm_version", "finish_reason")


def table_kind(path: Path) -> str | None:
    """Give `.parquet` or `.arrow` if the file begins or is named like one, else None."""
    try:
        with path.open("rb") as stream:
            head = stream.read(6)
    except OSError as error:
        raise UnusableInput(f"{path} cannot be read: {error.strerror}") from None
    by_content = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    return by_content or kind_of_name(path)


def kind_of_name(path: Path) -> str | None:
    """Give `.parquet` or `.arrow` if the name ends like one's, else None."""
    suffix = path.suffix.lower()
    if suffix in _PARQUET:
        return ".parquet"
    return ".arrow" if suffix in _ARROW else None


def read_cases(path: Path, kind: str) -> Iterator[Callable[[], bytes]]:
    """Give the case of each row as what makes its JSON text.

    Columns are the members of a case. Structs and lists become JSON, flat and nested lists of
    numbers packed arrays, binary base64; text that begins like JSON is taken as JSON.

    Raises:
        UnusableInput: the file is none, or pyarrow is not installed. A row that cannot be
            written as JSON raises when it is made.
    """
    pa = _pyarrow()
    with _named(path, pa):
        for batch in _batches(path, kind, pa):
            columns = [(name, batch.column(name)) for name in batch.schema.names]
            for row in range(batch.num_rows):
                yield partial(_case, columns, row, pa)


def _batches(path: Path, kind: str, pa: ModuleType) -> Iterator[Any]:
    if kind == ".arrow":
        with pa.memory_map(str(path)) as source:
            try:
                reader = pa.ipc.open_file(source)
            except pa.ArrowInvalid:
                source.seek(0)
                yield from pa.ipc.open_stream(source)
            else:
                for index in range(reader.num_record_batches):
                    yield reader.get_batch(index)
        return
    from pyarrow import parquet

    with parquet.ParquetFile(path, pre_buffer=False) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        size = sum(group.total_byte_size for group in groups)
        rows = max(file.metadata.num_rows, 1)
        per_batch = min(max(_BATCH_BYTES * rows // max(size, 1), 1), _MOST_ROWS)
        yield from file.iter_batches(batch_size=per_batch, use_threads=False)


def _case(columns: list[tuple[str, Any]], row: int, pa: ModuleType) -> bytes:
    members = []
    for name, column in columns:
        scalar = column[row]
        if scalar.is_valid:
            text = _value(name, scalar, pa)
            members.append(json.dumps(name).encode() + b":" + text)
    return b"{" + b",".join(members) + b"}"


def _value(name: str, scalar: Any, pa: ModuleType) -> bytes:
    kind = scalar.type
    if pa.types.is_dictionary(kind):
        return _value(name, scalar.value, pa)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        text: str = scalar.as_py()
        if name not in _PLAIN_TEXT and text.lstrip()[:1] in {"{", "["}:
            return _json_text(name, text)
        return json.dumps(text).encode()
    if _is_list(kind, pa):
        packed = _packed(scalar, pa)
        if packed is not None:
            return json.dumps(packed).encode()
    return json.dumps(_plain(scalar, pa), default=_other).encode()


def _packed(scalar: Any, pa: ModuleType) -> dict[str, Any] | None:
    """Lists of numbers without nulls as arrays, and lists of lists of integers as masks."""
    values = scalar.values
    if _is_number(values.type, pa) and not values.null_count:
        return _array(values)
    if _is_list(values.type, pa) and pa.types.is_integer(values.type.value_type):
        flat = values.flatten()
        if not values.null_count and not flat.null_count:
            return {"ids": _array(flat), "counts": _array(values.value_lengths())}
    return None


def _array(values: Any) -> dict[str, Any]:
    array = values.to_numpy(zero_copy_only=False)
    # What the packed forms lack is widened to what they have.
    wide = array.astype("int64") if array.dtype.kind in "iu" else array
    little = wide.astype(wide.dtype.newbyteorder("<"), copy=False)
    return {"data": b64encode(little.tobytes()).decode(), "dtype": wide.dtype.name}


def _plain(scalar: Any, pa: ModuleType) -> Any:
    """Arrow's own conversion, with maps as objects and binary as base64."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_struct(kind):
        return {field.name: _plain(scalar[field.name], pa) for field in kind}
    if pa.types.is_map(kind):
        return {str(key): value for key, value in scalar.as_py()}
    if _is_list(kind, pa) and not _is_number(kind.value_type, pa):
        return [_plain(item, pa) for item in scalar.values]
    return scalar.as_py()


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value)


def _json_text(name: str, text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        try:
            json.loads(text)  # takes NaN, which the replay names with its place
        except (ValueError, RecursionError):
            problem = Problem("malformed-json", str(error), f"/{name}")
            detail = f"the text in column {name} is not JSON: {error}"
            raise MalformedDocument(detail, (problem,)) from None
    return data


def _is_list(kind: Any, pa: ModuleType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any, pa: ModuleType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _pyarrow() -> ModuleType:
    try:
        import pyarrow
    except ImportError:
        raise UnusableInput(
            "Parquet and Arrow files need pyarrow, which is not installed: "
            "pip install 'vllm-admission[arrow]'"
        ) from None
    module: ModuleType = pyarrow
    return module


@contextmanager
def _named(path: Path, pa: ModuleType) -> Iterator[None]:
    """Turn pyarrow's errors about a file into ours."""
    try:
        yield
    except OSError as error:
        raise UnusableInput(f"{path} cannot be read: {error.strerror or error}") from None
    except pa.ArrowException as error:
        detail = f"{path} is no Parquet or Arrow file that can be read: {error}"
        raise UnusableInput(detail) from None


class ArrowSink:
    """Writes replayed rows to a Parquet or Arrow file; `schema` has its columns."""

    def __init__(self, path: Path, kind: str) -> None:
        """Begin the file.

        Raises:
            UnusableInput: it cannot be written, or pyarrow is not installed.
        """
        self._pa = pa = _pyarrow()
        self.schema = pa.schema(
            [
                ("id", pa.string()),
                ("line", pa.int64()),
                ("choice", pa.int32()),
                ("row", pa.int32()),
                ("position", pa.int64()),
                ("token_id", pa.int64()),
                ("outcome", pa.string()),
                ("reason", pa.string()),
                ("gap", pa.float64()),
                ("tolerance", pa.float64()),
                ("kept_mass", pa.float64()),
                ("mask_size", pa.int32()),
                ("failed", pa.list_(pa.string())),
            ]
        )
        self._waiting: list[Any] = []
        self._rows = 0
        with _named(path, pa):
            if kind == ".arrow":
                self._writer = pa.ipc.new_file(str(path), self.schema)
            else:
                from pyarrow import parquet

                self._writer = parquet.ParquetWriter(path, self.schema)

    def write(self, columns: dict[str, list[Any]]) -> None:
        """Add the rows of one choice, a column each; an `id` that is no text becomes JSON."""
        ids = [i if isinstance(i, str | None) else json.dumps(i) for i in columns["id"]]
        table = self._pa.table({**columns, "id": ids}, schema=self.schema)
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= _ROWS_A_GROUP:
            self._flush()

    def close(self) -> None:
        """End the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting:
            table = self._pa.concat_tables(self._waiting).combine_chunks()
            self._writer.write_table(table)
            self._waiting.clear()
            self._rows = 0
