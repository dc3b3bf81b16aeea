package org.apache.spark.scheduler.cluster.slotwise

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path, StandardCopyOption}

import org.apache.spark.SparkConf
import org.apache.spark.api.python.Py4JServer

/** Work that a JVM which waits does with others, as it will have to do it with them later. */
private[slotwise] object Practice {

  private val LookMs = 20

  /**
   * A Python has this JVM work as PySpark programs do.
   *
   * This JVM opens a gateway and writes the file `practice`, a JSON object: `port` and `secret` of the gateway, `conf`,
   * the settings of the contexts to be made, `cluster`, those of the last one, which has an executor, and `rounds`. The
   * gateway closes when the file `practice.done` is there.
   */
  def withPython(practice: Path, folder: Path, rounds: Int): Unit = {
    val server = new Py4JServer(new SparkConf())
    server.start()
    try {
      val told = BridgeLink.Json.createObjectNode()
      told.put("port", server.getListeningPort)
      told.put("secret", server.secret)
      told.put("rounds", rounds)
      val cluster = PracticeCluster.conf(folder)
      for ((name, conf) <- Seq("conf" -> WarmUp.conf(folder), "cluster" -> cluster)) {
        val settings = told.putObject(name)
        conf.getAll.foreach { case (key, value) => settings.put(key, value) }
      }
      val written = practice.resolveSibling(s"${practice.getFileName}.new")
      Files.write(written, told.toString.getBytes(UTF_8))
      val done = practice.resolveSibling(s"${practice.getFileName}.done")
      PracticeCluster.withExecutor(cluster.get("spark.authenticate.secret")) {
        Files.move(written, practice, StandardCopyOption.ATOMIC_MOVE)
        while (!Files.exists(done)) Thread.sleep(LookMs)
      }
      Files.delete(done)
    } finally {
      Files.deleteIfExists(practice)
      server.shutdown()
      WarmUp.remove(folder)
    }
  }
}
