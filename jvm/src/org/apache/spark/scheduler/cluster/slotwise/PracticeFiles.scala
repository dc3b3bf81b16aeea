package org.apache.spark.scheduler.cluster.slotwise

import java.io.{ByteArrayInputStream, FileNotFoundException}
import java.net.URI
import java.nio.file.{Files, Path => LocalPath}
import java.util.{Base64, Map => JavaMap}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, FileSystem, FSDataInputStream, FSDataOutputStream, Path}
import org.apache.hadoop.fs.{PositionedReadable, Seekable}
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.util.Progressable
import org.apache.parquet.example.data.simple.SimpleGroupFactory
import org.apache.parquet.hadoop.example.ExampleParquetWriter
import org.apache.parquet.io.LocalOutputFile
import org.apache.parquet.schema.MessageTypeParser

/**
 * A file system with one file, which is among its settings: so a driver and its executors can practise reading Parquet
 * wherever each of them is. Read only.
 */
class PracticeFiles extends FileSystem {
  import PracticeFiles._

  private var content = Array.emptyByteArray

  override def initialize(name: URI, conf: Configuration): Unit = {
    super.initialize(name, conf)
    content = Base64.getDecoder.decode(conf.get(Content))
  }

  override def getUri: URI = URI.create(s"$Scheme:///")

  override def getFileStatus(path: Path): FileStatus = path.toUri.getPath match {
    case "/" => new FileStatus(0, true, 1, BlockBytes, 0, path)
    case File => new FileStatus(content.length, false, 1, BlockBytes, 0, makeQualified(path))
    case _ => throw new FileNotFoundException(path.toString)
  }

  override def listStatus(path: Path): Array[FileStatus] =
    Array(getFileStatus(if (path.isRoot) new Path(getUri.toString, File.tail) else path))

  override def open(path: Path, bufferBytes: Int): FSDataInputStream =
    if (path.toUri.getPath == File) new FSDataInputStream(new Bytes(content))
    else throw new FileNotFoundException(path.toString)

  override def getWorkingDirectory: Path = new Path(getUri)
  override def setWorkingDirectory(path: Path): Unit = ()

  override def create(
      path: Path, permission: FsPermission, overwrite: Boolean, bufferBytes: Int, replication: Short, blockBytes: Long,
      progress: Progressable): FSDataOutputStream = refuse()
  override def append(path: Path, bufferBytes: Int, progress: Progressable): FSDataOutputStream = refuse()
  override def rename(from: Path, to: Path): Boolean = refuse()
  override def delete(path: Path, recursive: Boolean): Boolean = refuse()
  override def mkdirs(path: Path, permission: FsPermission): Boolean = refuse()

  private def refuse(): Nothing = throw new UnsupportedOperationException("these files are for reading")
}

object PracticeFiles {
  private val Scheme = "slotwise-practice"
  private val File = "/rows.parquet"
  private val BlockBytes = 1L << 20
  // Spark passes options on in lower case.
  private val Content = s"$Scheme.content"
  private val Rows = 500

  /** Options for a reader of Parquet: rows of `k`, `v` (whole numbers), `d` and `s`. `folder` is for a moment's use. */
  def options(folder: LocalPath): JavaMap[String, String] = {
    val file = folder.resolve("practice-rows.parquet")
    Files.createDirectories(folder)
    try {
      write(file)
      JavaMap.of(
        "path", s"$Scheme:///",
        Content, Base64.getEncoder.encodeToString(Files.readAllBytes(file)),
        s"fs.$Scheme.impl", classOf[PracticeFiles].getName,
        s"fs.$Scheme.impl.disable.cache", "true")
    } finally Files.deleteIfExists(file)
  }

  private def write(file: LocalPath): Unit = {
    val schema = MessageTypeParser.parseMessageType(
      "message rows { optional int64 k; optional int64 v; optional double d; optional binary s (STRING); }")
    val groups = new SimpleGroupFactory(schema)
    val writer = ExampleParquetWriter.builder(new LocalOutputFile(file)).withType(schema).build()
    try for (row <- 0L until Rows) {
      val group = groups.newGroup().append("k", row % 7).append("v", row)
      writer.write(group.append("d", row.toDouble).append("s", s"n${row % 11}"))
    } finally writer.close()
  }

  private class Bytes(content: Array[Byte]) extends ByteArrayInputStream(content) with Seekable with PositionedReadable {
    override def seek(position: Long): Unit = pos = position.toInt
    override def getPos: Long = pos
    override def seekToNewSource(position: Long): Boolean = false

    override def read(position: Long, buffer: Array[Byte], offset: Int, length: Int): Int =
      new ByteArrayInputStream(content, position.toInt, content.length).read(buffer, offset, length)

    override def readFully(position: Long, buffer: Array[Byte], offset: Int, length: Int): Unit =
      System.arraycopy(content, position.toInt, buffer, offset, length)

    override def readFully(position: Long, buffer: Array[Byte]): Unit = readFully(position, buffer, 0, buffer.length)
  }
}
