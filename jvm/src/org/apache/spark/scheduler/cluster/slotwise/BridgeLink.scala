package org.apache.spark.scheduler.cluster.slotwise

import java.io.{BufferedReader, IOException, InputStreamReader}
import java.net.{InetAddress, InetSocketAddress, Socket}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{CountDownLatch, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.internal.Logging

/** Where the worker of this driver listens (loopback), and the word that proves who connects. */
private[slotwise] case class BridgeAddress(port: Int, token: String, jobId: String, attempt: String)

private[slotwise] object BridgeAddress {
  def fromEnvironment(env: Map[String, String]): Option[BridgeAddress] =
    for {
      port <- env.get("SLOTWISE_BRIDGE_PORT")
      token <- env.get("SLOTWISE_BRIDGE_TOKEN")
    } yield BridgeAddress(
      port.toInt, token, env.getOrElse("SLOTWISE_JOB_ID", "job"), env.getOrElse("SLOTWISE_ATTEMPT", "1"))
}

/**
 * The line to the worker: JSON objects, one a line. Out: `hello` once, then `report`s. In: `directives`.
 *
 * A report is absolute. It is sent on connecting, soon after a change, and every two seconds, so that any line may be
 * lost. A broken connection is made anew for as long as the application lives.
 *
 * @param report     builds the current report without its version; called on the link's thread only
 * @param directives is given each line of directives, on the reader's thread
 */
private[slotwise] class BridgeLink(
    address: BridgeAddress,
    appId: String,
    report: () => ObjectNode,
    directives: JsonNode => Unit)
  extends Logging {

  import BridgeLink._

  private val lock = new Object
  // All guarded by `lock`. Times are System.nanoTime, in milliseconds.
  private var urgent = true
  private var progressed = false
  private var closing = false
  private var socket: Option[Socket] = None

  private val ended = new CountDownLatch(1)
  private var lastBody = ""
  private var version = 0L

  private val thread = daemon("slotwise-bridge") { work() }

  def start(): Unit = thread.start()

  /** Something that the JobMaster acts on has changed. */
  def changed(): Unit = lock.synchronized {
    urgent = true
    lock.notifyAll()
  }

  /** Only numbers that people look at have changed. */
  def progress(): Unit = lock.synchronized {
    if (!progressed) {
      progressed = true
      lock.notifyAll()
    }
  }

  /** Sends one last report and ends; waits for the write at most `timeoutMs`. */
  def close(timeoutMs: Long): Unit = {
    lock.synchronized {
      closing = true
      urgent = true
      lock.notifyAll()
    }
    if (!ended.await(timeoutMs, TimeUnit.MILLISECONDS)) {
      logWarning("the worker did not take the last report of this application in time")
    }
    lock.synchronized(socket).foreach(closeQuietly)
    thread.interrupt()
  }

  private def work(): Unit = {
    var backOffMs = FirstBackOffMs
    while (ended.getCount > 0) {
      try {
        serve { backOffMs = FirstBackOffMs }
      } catch {
        case e: IOException => logDebug(s"bridge connection broken: $e")
        case _: InterruptedException => return
        // A bug in building a report must not end the link for good: the next attempt may work, and the log tells.
        case NonFatal(e) => logError("bridge failed, connecting again", e)
      }
      if (ended.getCount > 0) {
        try Thread.sleep(backOffMs) catch { case _: InterruptedException => return }
        backOffMs = math.min(backOffMs * 2, LastBackOffMs)
      }
    }
  }

  /** One connection, until it breaks or the last report is written. */
  private def serve(connected: => Unit): Unit = {
    val connection = new Socket()
    try {
      connection.setTcpNoDelay(true)
      connection.connect(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), address.port), ConnectTimeoutMs)
      lock.synchronized {
        socket = Some(connection)
        urgent = true
      }
      val hello = Json.createObjectNode()
      hello.putObject("hello").put("token", address.token).put("protocol", Protocol).put("app_id", appId)
      write(connection, hello)
      daemon("slotwise-bridge-reader") { read(connection) }.start()
      var lastSentMs = nowMs() - ProgressGapMs
      var done = false
      while (!done) {
        val last = awaitTurn(lastSentMs)
        lastSentMs = nowMs()
        write(connection, Json.createObjectNode().set[ObjectNode]("report", stamped()))
        connected
        if (last) {
          ended.countDown()
          done = true
        }
      }
    } finally {
      lock.synchronized { socket = None }
      closeQuietly(connection)
    }
  }

  /** Waits until the next report is due. True if it is the last one. */
  private def awaitTurn(lastSentMs: Long): Boolean = lock.synchronized {
    def due: Long =
      if (closing) 0
      else if (urgent) lastSentMs + UrgentGapMs - nowMs()
      else if (progressed) lastSentMs + ProgressGapMs - nowMs()
      else lastSentMs + RepeatMs - nowMs()
    var waitMs = due
    while (waitMs > 0) {
      if (socket.isEmpty) throw new IOException("closed by the worker")
      lock.wait(waitMs)
      waitMs = due
    }
    if (socket.isEmpty) throw new IOException("closed by the worker")
    urgent = false
    progressed = false
    closing
  }

  /** The current report with its version, which rises if, and only if, something in it has changed. */
  private def stamped(): ObjectNode = {
    val node = report()
    val body = Json.writeValueAsString(node)
    if (body != lastBody) {
      lastBody = body
      version = Versions.incrementAndGet()
    }
    node.put("version", version)
  }

  private def read(connection: Socket): Unit = {
    try {
      val reader = new BufferedReader(new InputStreamReader(connection.getInputStream, UTF_8))
      var line = reader.readLine()
      while (line != null) {
        val node = Json.readTree(line).get("directives")
        if (node != null) directives(node)
        line = reader.readLine()
      }
    } catch {
      case e: IOException => logDebug(s"bridge reader ends: $e")
      case NonFatal(e) => logError("cannot use what the worker sent", e)
    }
    // Wakes the writer: a half-dead connection is not worth keeping.
    closeQuietly(connection)
    lock.synchronized {
      if (socket.contains(connection)) socket = None
      lock.notifyAll()
    }
  }
}

private[slotwise] object BridgeLink {
  val Protocol = 1
  val Json = new ObjectMapper()

  private val UrgentGapMs = 50L
  private val ProgressGapMs = 500L
  private val RepeatMs = 2000L
  private val FirstBackOffMs = 50L
  private val LastBackOffMs = 2000L
  private val ConnectTimeoutMs = 5000

  /** Versions rise over all applications of this JVM, so that a late line of an earlier one can never seem newer. */
  private val Versions = new AtomicLong

  private def nowMs(): Long = System.nanoTime() / 1000000L

  private def write(connection: Socket, node: ObjectNode): Unit = {
    // One write of one array: the worker never sees half a line for longer than the network needs.
    connection.getOutputStream.write((Json.writeValueAsString(node) + "\n").getBytes(UTF_8))
  }

  private def closeQuietly(connection: Socket): Unit =
    try connection.close() catch { case _: IOException => () }

  private def daemon(name: String)(body: => Unit): Thread = {
    val thread = new Thread(() => body, name)
    thread.setDaemon(true)
    thread
  }
}
