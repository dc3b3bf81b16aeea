"""Spark Declarative Pipelines projects on the command line: which folder is one, and what job it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from slotwise.model.errors import UsageError
from slotwise.model.pipeline import PipelineOptions
from slotwise.model.regions import MIN_KEY

Function = TypeVar("Function", bound=Callable[..., Any])

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")

_OPTIONS = [
    click.option(
        "--refresh", multiple=True, metavar="NAMES", help="Of a pipeline, update these datasets alone: a,b,c."
    ),
    click.option("--full-refresh", multiple=True, metavar="NAMES", help="The same, but make them from nothing."),
    click.option("--full-refresh-all", is_flag=True, help="Make all datasets of a pipeline from nothing."),
    click.option("--dry-run", is_flag=True, help="Check the definitions of a pipeline, and run nothing."),
]


def pipeline_options(function: Function) -> Function:
    """What ``spark-pipelines run`` can be told, by its names."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def specification(program: str) -> Path | None:
    """The specification file, if ``program`` is a project's folder or that file; None if it is something else.

    Raises :class:`UsageError` for a folder without one, or with two.
    """
    path = Path(program).expanduser().absolute()
    if path.is_file() and path.name in SPEC_NAMES:
        return path
    if not path.is_dir():
        return None
    found = [path / name for name in SPEC_NAMES if (path / name).is_file()]
    if len(found) > 1:
        raise UsageError(f"{program} has two specifications, {SPEC_NAMES[0]} and {SPEC_NAMES[1]}: one must go")
    if not found:
        raise UsageError(
            f"{program} is a directory without a {SPEC_NAMES[0]}; give a program's .py file, or the directory of a "
            "Spark Declarative Pipelines project"
        )
    return found[0]


def read_specification(path: Path) -> tuple[str, dict[str, str]]:
    """The project's name and its configuration. Raises :class:`UsageError` for a file that cannot be one; Spark's own
    checks follow in the job.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        raise UsageError(f"{path} is not a pipeline's specification: it has no name")
    configuration = content.get("configuration") or {}
    if not isinstance(configuration, dict) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in configuration.items()
    ):
        raise UsageError(f"{path}: configuration must have texts for keys and values; write numbers as '4'")
    return content["name"], configuration


def asked_of_pipeline(given: Mapping[str, Any], is_pipeline: bool) -> PipelineOptions | None:
    """What the options for pipelines say; None for a plain program. Raises :class:`UsageError` if they do not fit."""
    options = PipelineOptions(
        refresh=_names(given["refresh"]),
        full_refresh=_names(given["full_refresh"]),
        full_refresh_all=given["full_refresh_all"],
        dry_run=given["dry_run"],
    )
    if not is_pipeline:
        if options != PipelineOptions():
            raise UsageError("--refresh, --full-refresh, --full-refresh-all and --dry-run are for pipeline projects")
        return None
    if options.full_refresh_all and (options.refresh or options.full_refresh):
        raise UsageError("--full-refresh-all leaves nothing to select: name datasets, or all")
    if options.dry_run and (options.refresh or options.full_refresh or options.full_refresh_all):
        raise UsageError("--dry-run updates nothing: it cannot be told what")
    return options


def conf_of_pipeline(
    conf: Mapping[str, str], configuration: Mapping[str, str], given: Mapping[str, Any]
) -> dict[str, str]:
    """The job's Spark configuration: what was given on the command line, over the project's own. Sizes that were given
    as options count as stated, like those in the project.
    """
    merged = {**{key: value for key, value in configuration.items() if key.startswith("spark.")}, **conf}
    if merged.get("spark.dynamicAllocation.enabled", "false").strip().lower() == "true":
        raise UsageError("a pipeline's executors follow its regions: spark.dynamicAllocation.enabled must not be true")
    if given["executor_memory"] is not None:
        merged["spark.executor.memory"] = given["executor_memory"]
    if given["executor_cores"] is not None:
        merged["spark.executor.cores"] = str(given["executor_cores"])
    if given["min_executors"] is not None:
        merged[MIN_KEY] = str(given["min_executors"])
    return merged


def _names(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for entry in given for name in entry.split(",") if name.strip())
