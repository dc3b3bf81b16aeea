"""Build hook: compiles the Spark bridge into the wheel, where pyspark and Java are at hand while building.

With ``--no-isolation`` the build sees the pyspark that is installed, and the wheel carries a bridge for exactly that
version of Spark. The sources are always in the wheel (``force-include`` in pyproject.toml); for other versions of Spark
they are compiled on first use.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BridgeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds ``slotwise/spark/jars/slotwise-bridge-<version>.jar`` to a wheel, if it can be made."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is packed; an editable install compiles on first use."""
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root / "src"))
        try:
            from slotwise.model.errors import SlotwiseError
            from slotwise.spark.bridge_jar import compile_bridge
            from slotwise.spark.home import find_spark
            from slotwise.spark.java import find_java
        except ImportError as error:
            # An isolated build has hatchling alone.
            self.app.display_warning(f"the wheel gets the bridge's sources only: {error}")
            return
        finally:
            sys.path.pop(0)
        try:
            spark = find_spark()
            java = find_java(spark_version=spark.version)
            self._scratch = tempfile.TemporaryDirectory(prefix="slotwise-wheel-")
            jar = Path(self._scratch.name) / f"slotwise-bridge-{spark.version}.jar"
            compile_bridge(spark, java, root / "jvm", jar)
        except SlotwiseError as error:
            first_line = str(error).splitlines()[0]
            self.app.display_warning(f"the wheel gets the bridge's sources only: {first_line}")
            return
        build_data["force_include"][str(jar)] = f"slotwise/spark/jars/{jar.name}"
        self.app.display_info(f"compiled the bridge for Spark {spark.version} with Java {java.major}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled; it is in the wheel now."""
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            scratch.cleanup()
