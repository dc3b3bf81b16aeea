package org.apache.spark.scheduler.cluster.slotwise

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path, StandardCopyOption}

import scala.util.control.NonFatal

import org.apache.spark.SparkConf
import org.apache.spark.api.python.Py4JServer
import org.apache.spark.util.Utils

/**
 * Work that a Python has this JVM do as PySpark programs have theirs, so that the way between the two is warm as well.
 *
 * This JVM opens a gateway and writes the file `practice`, a JSON object: `port` and `secret` of the gateway, `conf`, the
 * settings of the context to be made, and `rounds`. The gateway closes when the file `practice.done` is there.
 */
private[slotwise] object Practice {

  private val LookMs = 20

  def withPython(practice: Path, folder: Path, rounds: Int): Unit = {
    val server = new Py4JServer(new SparkConf())
    server.start()
    try {
      val told = BridgeLink.Json.createObjectNode()
      told.put("port", server.getListeningPort)
      told.put("secret", server.secret)
      told.put("rounds", rounds)
      val conf = told.putObject("conf")
      WarmUp.conf(folder).getAll.foreach { case (name, value) => conf.put(name, value) }
      val written = practice.resolveSibling(s"${practice.getFileName}.new")
      Files.write(written, told.toString.getBytes(UTF_8))
      Files.move(written, practice, StandardCopyOption.ATOMIC_MOVE)
      val done = practice.resolveSibling(s"${practice.getFileName}.done")
      while (!Files.exists(done)) Thread.sleep(LookMs)
      Files.delete(done)
    } finally {
      Files.deleteIfExists(practice)
      server.shutdown()
      try Utils.deleteRecursively(folder.toFile) catch { case NonFatal(_) => }
    }
  }
}
