package org.apache.spark.scheduler.cluster.slotwise

import java.io.{BufferedReader, InputStreamReader}
import java.net.{InetAddress, ServerSocket}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path, StandardCopyOption}
import java.util.concurrent.{CountDownLatch, TimeUnit}

import org.apache.spark.SparkConf
import org.apache.spark.api.python.Py4JServer

/** Work that a JVM which waits does with others, as it will have to do it with them later. */
private[slotwise] object Practice {

  private val LookMs = 20

  /**
   * A Python has this JVM work as PySpark programs do.
   *
   * This JVM opens a gateway and writes the file `practice`, a JSON object: `port` and `secret` of the gateway, `conf`,
   * the settings of the context to be made, and `rounds`. The gateway closes when the file `practice.done` is there.
   */
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
      WarmUp.remove(folder)
    }
  }

  /** A worker that wants to know how an application fares, so many times. */
  def withWorker(times: Int): Unit = for (number <- 1 to times) {
    val heard = new CountDownLatch(1)
    val worker = new ServerSocket(0, 1, InetAddress.getLoopbackAddress)
    try {
      val link = new BridgeLink(BridgeAddress(worker.getLocalPort, "practice", "practice", "1"), "practice",
        () => BridgeLink.Json.createObjectNode().put("number", number), _ => heard.countDown())
      link.start()
      val connection = worker.accept()
      try {
        val lines = new BufferedReader(new InputStreamReader(connection.getInputStream, UTF_8))
        // The greeting, then the first report.
        lines.readLine()
        lines.readLine()
        connection.getOutputStream.write("{\"directives\": {\"version\": 1}}\n".getBytes(UTF_8))
        heard.await(LimitMs, TimeUnit.MILLISECONDS)
        link.close(LimitMs)
      } finally connection.close()
    } finally worker.close()
  }

  private val LimitMs = 1000L
}
