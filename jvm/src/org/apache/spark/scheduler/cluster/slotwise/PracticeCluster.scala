package org.apache.spark.scheduler.cluster.slotwise

import java.io.{BufferedReader, IOException, InputStreamReader}
import java.lang.ProcessBuilder.Redirect
import java.net.{InetAddress, ServerSocket, Socket}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Path
import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.jdk.OptionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.{SparkConf, SparkContext, SparkEnv}
import org.apache.spark.executor.CoarseGrainedExecutorBackend
import org.apache.spark.resource.ResourceProfile
import org.apache.spark.rpc.RpcEnv
import org.apache.spark.sql.SparkSession

/**
 * An application with one executor, for practice: much of what drivers and executors do they only do with each other.
 * Whoever practises starts the other side in a JVM of its own, which ends with the practice.
 */
private[slotwise] object PracticeCluster {

  /** The settings of an application, as those of jobs. */
  def conf(folder: Path): SparkConf = WarmUp.conf(folder)
    .setMaster(s"${SlotwiseClusterManager.Scheme}practice")
    .set("spark.executor.instances", "1")
    .set("spark.executor.cores", "1")

  /** Does `body`, in which each application of this JVM gets an executor. If that ends too early, so do all Spark jobs. */
  def withExecutor(secret: String)(body: => Unit): Unit = {
    @volatile var started = Vector.empty[Process]
    val worker = new PracticeWorker(executor => {
      val startup = executor.path("startup_conf").properties().asScala
      val process = startJvm(
        startup.map(entry => s"-D${entry.getKey}=${entry.getValue.asText()}").toSeq,
        classOf[CoarseGrainedExecutorBackend].getName +: arguments(executor),
        Map(Ticket -> executor.path("ticket").asText(), "_SPARK_AUTH_SECRET" -> secret))
      started :+= process
      val application = executor.path("app_id").asText()
      process.onExit().thenRun { () =>
        SparkContext.getActive.filter(_.applicationId == application).foreach(_.cancelAllJobs())
      }
    })
    try worker.during(body)
    finally started.foreach(_.destroyForcibly())
  }

  /** This JVM is the executor of another one's applications, as many as `count`, with work of `rounds` each. */
  def withDriver(folder: Path, count: Int, rounds: Int): Unit = {
    val main = PracticeDriver.getClass.getName.stripSuffix("$")
    val driver = startJvm(Nil, Seq(main, folder.toString, s"$count", s"$rounds"), Map.empty)
    try {
      val said = new BufferedReader(new InputStreamReader(driver.getInputStream, UTF_8))
      val executors = Iterator.continually(said.readLine()).takeWhile(_ != null).filter(_.startsWith("{"))
      executors.foreach(line => execute(BridgeLink.Json.readTree(line)))
    } finally {
      driver.destroyForcibly()
      WarmUp.remove(folder)
    }
  }

  private def execute(executor: JsonNode): Unit = {
    val environment = WarmJvm.environment
    environment.put(Ticket, executor.path("ticket").asText())
    executor.path("startup_conf").properties().forEach(entry => System.setProperty(entry.getKey, entry.getValue.asText()))
    System.setProperty("spark.authenticate.secret", executor.path("secret").asText())
    try {
      val parsed = CoarseGrainedExecutorBackend.parseArguments(arguments(executor).toArray, "practice")
      CoarseGrainedExecutorBackend.run(parsed, (rpc, given, env, profile) => new PracticeExecutor(rpc, given, env, profile))
    } finally {
      environment.remove(Ticket)
      WarmJvm.clearSettings()
      SparkEnv.set(null)
    }
  }

  /** An executor that does not end its JVM. */
  private class PracticeExecutor(
      rpc: RpcEnv,
      given: CoarseGrainedExecutorBackend.Arguments,
      env: SparkEnv,
      profile: ResourceProfile)
    extends CoarseGrainedExecutorBackend(rpc, given.driverUrl, given.executorId, given.bindAddress, given.hostname,
      given.cores, env, given.resourcesFileOpt, profile) {

    override protected def exitExecutor(code: Int, reason: String, cause: Throwable, notifyDriver: Boolean): Unit =
      rpc.shutdown()
  }

  private val Ticket = s"SPARK_EXECUTOR_ATTRIBUTE_${SlotwiseSchedulerBackend.TicketAttribute}"

  private def arguments(executor: JsonNode): Seq[String] = Seq(
    "--driver-url", executor.path("driver_url").asText(), "--executor-id", executor.path("executor_id").asText(),
    "--hostname", "127.0.0.1", "--bind-address", "127.0.0.1", "--cores", "1",
    "--app-id", executor.path("app_id").asText(),
    "--resourceProfileId", ResourceProfile.DEFAULT_RESOURCE_PROFILE_ID.toString)

  /** A JVM with the class path, heap and cache of this one. */
  private def startJvm(options: Seq[String], main: Seq[String], env: Map[String, String]): Process = {
    val own = ProcessHandle.current().info()
    val files = own.arguments().toScala.toSeq.flatten.filter(_.startsWith("@"))
    if (files.isEmpty || own.command().isEmpty) throw new IOException("this JVM does not know how it was started")
    val builder = new ProcessBuilder((own.command().get() +: (files ++ options ++ main)).asJava)
      .redirectError(Redirect.DISCARD)
    builder.environment().putAll(env.asJava)
    builder.start()
  }
}

/** What a worker and the JobMaster are to an application, for practice: `launch` is to start an executor. */
private[slotwise] class PracticeWorker(launch: ObjectNode => Unit) {
  private val Port = "SLOTWISE_BRIDGE_PORT"
  private val Token = "SLOTWISE_BRIDGE_TOKEN"

  def during(body: => Unit): Unit = {
    val listening = new ServerSocket(0, 8, InetAddress.getLoopbackAddress)
    val environment = WarmJvm.environment
    try {
      environment.put(Port, listening.getLocalPort.toString)
      environment.put(Token, "practice")
      val thread = new Thread(() => accept(listening), "practice-worker")
      thread.setDaemon(true)
      thread.start()
      body
    } finally {
      Seq(Port, Token).foreach(environment.remove)
      listening.close()
    }
  }

  /** One application after the other. */
  private def accept(listening: ServerSocket): Unit = try {
    while (true) {
      val connection = listening.accept()
      try serve(connection) finally connection.close()
    }
  } catch { case _: IOException => }

  private def serve(connection: Socket): Unit = {
    val lines = new BufferedReader(new InputStreamReader(connection.getInputStream, UTF_8))
    var launched = false
    Iterator.continually(lines.readLine()).takeWhile(_ != null).foreach { line =>
      val report = BridgeLink.Json.readTree(line).path("report")
      if (!launched && report.path("totals").size > 0) {
        launched = true
        val ticket = UUID.randomUUID().toString
        val executor = BridgeLink.Json.createObjectNode().put("executor_id", "1").put("ticket", ticket)
        Seq("app_id", "driver_url").foreach(name => executor.set[JsonNode](name, report.get(name)))
        executor.set[JsonNode]("startup_conf", report.path("launch").get("startup_conf"))
        val told = BridgeLink.Json.createObjectNode()
        val directives = told.putObject("directives").put("version", 1).put("app_id", report.path("app_id").asText())
        directives.putObject("launched").put("1", ticket)
        connection.getOutputStream.write(s"$told\n".getBytes(UTF_8))
        launch(executor)
      }
    }
  }
}

/**
 * The driver for an executor's practice, in a JVM of its own. It writes a line of JSON for each application that wants an
 * executor, and ends with its standard input at the latest. Arguments: a folder, how many applications, their work.
 */
object PracticeDriver {
  def main(arguments: Array[String]): Unit = {
    val Array(folder, count, rounds) = arguments
    val watch = new Thread(() => { while (System.in.read() >= 0) {}; Runtime.getRuntime.halt(1) }, "practice-parent")
    watch.setDaemon(true)
    watch.start()
    for (number <- 1 to count.toInt) {
      val conf = PracticeCluster.conf(Path.of(folder, s"application-$number"))
      val secret = conf.get("spark.authenticate.secret")
      new PracticeWorker(executor => println(executor.put("secret", secret))).during {
        val session = SparkSession.builder().config(conf).getOrCreate()
        try for (round <- 1 to rounds.toInt) WarmUp.work(session, Path.of(folder, s"$number-$round"), 100 * number + round)
        finally session.stop()
      }
    }
    System.exit(0)
  }
}
