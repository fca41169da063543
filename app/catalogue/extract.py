"""Extract the catalogue of the vLLM that is installed where this runs.

    python -m app.catalogue.extract -o vllm-0.33.0.json
    python /somewhere/app/catalogue/extract.py -o FILE      # without installing this project

It needs vLLM and the standard library, no GPU, no network and no model. Exit codes: 0 written,
1 nothing written (vLLM does not import or its layout is not known), 2 usage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # Run by path: Python put this directory first, whose module names would hide others.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from app.catalogue.extraction.capture import capture
from app.catalogue.extraction.installed import PLATFORMS, NoVllm, Vllm
from app.catalogue.extraction.merge import merge
from app.catalogue.extraction.writing import dump


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; give its exit code."""
    options = _parser().parse_args(arguments)
    try:
        with _stdout_to_stderr():
            second = _read(options.platform_override) if options.platform_override else None
            if options.merge:
                catalogue = _read(options.merge)
            else:
                vllm = Vllm()
                vllm.assume_platform(options.platform)
                catalogue = capture(vllm, version=options.version, models=options.models)
            if second is not None:
                catalogue = merge(catalogue, second)
            if options.note is not None:
                catalogue["capture_note"] = options.note
            text = dump(catalogue)
    except (NoVllm, ImportError, AttributeError, OSError, ValueError) as error:
        print(f"extract: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
        _report(catalogue, options.output)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="app.catalogue.extract", description="Extract the catalogue of the installed vLLM."
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file to write (default: standard output)"
    )
    parser.add_argument("--version", help="version to record (default: the installed one's)")
    parser.add_argument(
        "--platform",
        choices=PLATFORMS,
        help="what to capture for where vLLM sees no device (default: what torch was built for)",
    )
    parser.add_argument("--note", metavar="TEXT", help="how it was captured, for the record")
    parser.add_argument(
        "--platform-override",
        type=Path,
        metavar="FILE",
        help="capture of another platform to merge in",
    )
    parser.add_argument(
        "--merge",
        type=Path,
        metavar="FILE",
        help="take the first capture from FILE too, instead of from an installed vLLM",
    )
    parser.add_argument(
        "--no-models",
        dest="models",
        action="store_false",
        help="skip importing every model class",
    )
    return parser


def _read(path: Path) -> dict[str, Any]:
    try:
        catalogue = json.loads(path.read_text(encoding="utf-8"))
        catalogue["vllm_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a catalogue: {error}") from error
    return dict(catalogue)


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Keep what vLLM prints, also from C, out of a catalogue on standard output."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _report(catalogue: dict[str, Any], path: Path) -> None:
    flags = catalogue["flags"]
    spellings = {o for f in flags for o in (*f["options"], *f.get("hidden_options", ()))}
    print(
        f"{path}: vLLM {catalogue['vllm_version']} on {catalogue['captured_on_platform']}: "
        f"{len(flags)} flags, {len(spellings)} option strings, "
        f"{len(catalogue['config_classes'])} classes, {len(catalogue['env_vars'])} variables; "
        f"{len(catalogue['not_captured'])} facts not captured, listed in the file",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
