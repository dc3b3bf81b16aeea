"""Remembers the tables of a pipeline where Spark itself does not: in its catalog that lives in memory.

With that catalog, Spark's default, a table is unknown to the next driver though its files are there, and cannot be made
again in their place. So what a pipeline has made is noted beside its storage, and told to the next driver's catalog.
With any other catalog nothing is done here.

A note is written before a dataset is made for the first time and again, with all that the catalog needs, when a run has
finished. A dataset whose first run was cut off is removed and made from nothing.
"""

import json
import sys
from typing import Any, Optional

# The syntax of 3.9: this file is not run by Slotwise's own interpreter.
# ruff: noqa: UP045

_FOLDER = "_slotwise/tables"
_OWN_CATALOG = "spark_catalog"
_OUTPUTS = "org.apache.spark.scheduler.cluster.slotwise.Outputs$"


class TableMemory:
    """The notes under ``storage`` (a URI that Hadoop can read). ``jvm`` is the gateway's view of the driver's JVM,
    ``session`` its session.
    """

    def __init__(self, jvm: Any, session: Any, storage: str) -> None:
        self._jvm = jvm
        self._session = session
        self.active = session.conf().get("spark.sql.catalogImplementation") == "in-memory"
        self._folder = jvm.org.apache.hadoop.fs.Path(storage.rstrip("/") + "/" + _FOLDER)
        self._unfinished: set[str] = set()

    def restore(self) -> None:
        """Tell the catalog of what earlier drivers have made; remove what they have left half made."""
        if not self.active:
            return
        files = self._files(self._folder)
        if not files.exists(self._folder):
            return
        for status in files.listStatus(self._folder):
            if not status.getPath().getName().endswith(".json"):
                continue
            note = json.loads(self._read(status.getPath()))
            if self._known(note["parts"]):
                continue
            location = self._jvm.org.apache.hadoop.fs.Path(note["location"])
            there = self._files(location)
            outputs = getattr(getattr(self._jvm, _OUTPUTS), "MODULE$")
            outputs.recover(location, self._session.sessionState().newHadoopConf())
            if "schema" not in note:
                print(f"removed, its first run was cut off: {'.'.join(note['parts'])}", file=sys.stderr)
                there.delete(location, True)
                self._unfinished.add(_key(note["parts"]))
            elif there.exists(location):
                self._create(note)
            else:
                files.delete(status.getPath(), False)

    def begin(self, parts: list[str]) -> bool:
        """A dataset is about to be refreshed. True if it must be made from nothing: its first run was cut off."""
        table = self._table(parts)
        if table is None:
            return False
        key = _key(parts)
        if not self._known(parts):
            location = self._session.sessionState().catalog().defaultTablePath(table).toString()
            # What lies there already is somebody else's; Spark will refuse it, and nobody may remove it later.
            if self._is_free(location):
                self._write(parts, {"parts": parts, "location": location})
        return key in self._unfinished

    def finish(self, parts: list[str]) -> None:
        """A dataset has been refreshed."""
        table = self._table(parts)
        if table is None:
            return
        found = self._session.sessionState().catalog().getTableMetadata(table)
        if found.provider().isEmpty() or found.storage().locationUri().isEmpty():
            return
        columns = found.partitionColumnNames()
        note = {
            "parts": parts,
            "location": found.storage().locationUri().get().toString(),
            "schema": found.schema().toDDL(),
            "provider": found.provider().get(),
            "partitions": [columns.apply(index) for index in range(columns.size())],
        }
        self._write(parts, note)
        self._unfinished.discard(_key(parts))

    def _create(self, note: dict[str, Any]) -> None:
        _, database, _ = note["parts"]
        columns = ", ".join(_quoted(name) for name in note["partitions"])
        by = f" PARTITIONED BY ({columns})" if columns else ""
        location = note["location"].replace("\\", "\\\\").replace("'", "\\'")
        self._session.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
        self._session.sql(
            f"CREATE TABLE {'.'.join(_quoted(part) for part in note['parts'])} ({note['schema']}) "
            f"USING {_quoted(note['provider'])}{by} LOCATION '{location}'"
        )
        self._manage(note["parts"])
        print(f"known from an earlier run: {'.'.join(note['parts'])} in {note['location']}", file=sys.stderr)

    def _manage(self, parts: list[str]) -> None:
        """Make a table Spark's own, which CREATE TABLE does not where files are: others cannot be made anew by it."""
        catalog = self._session.sessionState().catalog()
        found = catalog.getTableMetadata(self._table(parts))
        managed = self._jvm.org.apache.spark.sql.catalyst.catalog.CatalogTableType.MANAGED()
        # The fields of the class differ from one version of Spark to the next.
        fields = range(found.productArity())
        values = [managed if found.productElementName(n) == "tableType" else found.productElement(n) for n in fields]
        catalog.externalCatalog().alterTable(found.copy(*values))

    def _table(self, parts: list[str]) -> Optional[Any]:
        """Spark's identifier for a table of its own catalog; None for what is none."""
        if not self.active or len(parts) != 3 or parts[0] != _OWN_CATALOG:
            return None
        return self._jvm.org.apache.spark.sql.catalyst.TableIdentifier(parts[2], self._jvm.scala.Option.apply(parts[1]))

    def _known(self, parts: list[str]) -> bool:
        return bool(self._session.sessionState().catalog().tableExists(self._table(parts)))

    # ---- files ----

    def _is_free(self, location: str) -> bool:
        path = self._jvm.org.apache.hadoop.fs.Path(location)
        files = self._files(path)
        return not files.exists(path) or len(files.listStatus(path)) == 0

    def _files(self, path: Any) -> Any:
        return path.getFileSystem(self._session.sessionState().newHadoopConf())

    def _path(self, parts: list[str]) -> Any:
        name = "".join(char if char.isalnum() or char in "-_" else f"%{ord(char):x}" for char in _key(parts))
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, f"{name}.json")

    def _read(self, path: Any) -> str:
        stream = self._files(path).open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _write(self, parts: list[str], note: dict[str, Any]) -> None:
        path = self._path(parts)
        files = self._files(path)
        # Appears whole: a file system's own rename where it replaces, as local ones and HDFS do with this call.
        partial = path.suffix(".partial")
        stream = files.create(partial, True)
        try:
            stream.write(json.dumps(note).encode("utf-8"))
        finally:
            stream.close()
        files.delete(path, False)
        files.rename(partial, path)


def _key(parts: list[str]) -> str:
    return ".".join(parts)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
