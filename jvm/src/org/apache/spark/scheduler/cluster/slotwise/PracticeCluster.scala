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

  /** Does `body`, in which each application of this JVM gets an executor. If that ends too early, so does its context. */
  def withExecutor(secret: String)(body: => Unit): Unit = {
    @volatile var started = Vector.empty[Process]
    @volatile var over = false
    def stop(application: String): Unit = {
      def active = SparkContext.getActive.filter(_.applicationId == application)
      while (!over && active.isEmpty) Thread.sleep(LookMs)
      active.foreach(_.stop())
    }
    val worker = new PracticeWorker(executor => {
      val application = executor.path("app_id").asText()
      val startup = executor.path("startup_conf").properties().asScala
      try {
        val process = startJvm(
          startup.map(entry => s"-D${entry.getKey}=${entry.getValue.asText()}").toSeq,
          classOf[CoarseGrainedExecutorBackend].getName +: arguments(executor),
          Map(Ticket -> executor.path("ticket").asText(), "_SPARK_AUTH_SECRET" -> secret),
          Redirect.DISCARD)
        started :+= process
        process.waitFor()
      } finally stop(application)
    })
    try worker.during(body)
    finally {
      over = true
      started.foreach(_.destroyForcibly())
    }
  }

  /** This JVM is the executor of another one's applications: one with `rounds` of work, and a last one with little. */
  def withDriver(folder: Path, rounds: Int): Unit = {
    val main = PracticeDriver.getClass.getName.stripSuffix("$")
    val driver = startJvm(Nil, Seq(main, folder.toString, s"$rounds"), Map.empty, Redirect.PIPE)
    try {
      val said = new BufferedReader(new InputStreamReader(driver.getInputStream, UTF_8))
      val executors = Iterator.continually(said.readLine()).takeWhile(_ != null).filter(_.startsWith("{"))
      executors.zipWithIndex.foreach { case (line, index) =>
        if (index > 0) WarmJvm.tidy()
        execute(BridgeLink.Json.readTree(line))
      }
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
      var failed = Option.empty[String]
      CoarseGrainedExecutorBackend.run(parsed, (rpc, given, env, profile) =>
        new PracticeExecutor(rpc, given, env, profile, reason => failed = Some(reason)))
      failed.foreach(reason => throw new IOException(reason))
    } finally {
      environment.remove(Ticket)
      WarmJvm.clearSettings()
      SparkEnv.set(null)
    }
  }

  /** An executor that does not end its JVM when it fails. */
  private class PracticeExecutor(
      rpc: RpcEnv,
      given: CoarseGrainedExecutorBackend.Arguments,
      env: SparkEnv,
      profile: ResourceProfile,
      failed: String => Unit)
    extends CoarseGrainedExecutorBackend(rpc, given.driverUrl, given.executorId, given.bindAddress, given.hostname,
      given.cores, env, given.resourcesFileOpt, profile) {

    override protected def exitExecutor(code: Int, reason: String, cause: Throwable, notifyDriver: Boolean): Unit = {
      failed(reason)
      rpc.shutdown()
    }
  }

  private val LookMs = 20
  private val Ticket = s"SPARK_EXECUTOR_ATTRIBUTE_${SlotwiseSchedulerBackend.TicketAttribute}"

  private def arguments(executor: JsonNode): Seq[String] = Seq(
    "--driver-url", executor.path("driver_url").asText(), "--executor-id", executor.path("executor_id").asText(),
    "--hostname", "127.0.0.1", "--bind-address", "127.0.0.1", "--cores", "1",
    "--app-id", executor.path("app_id").asText(),
    "--resourceProfileId", ResourceProfile.DEFAULT_RESOURCE_PROFILE_ID.toString)

  /** A JVM with the class path, heap and cache of this one. */
  private def startJvm(
      options: Seq[String], main: Seq[String], env: Map[String, String], output: Redirect): Process = {
    val own = ProcessHandle.current().info()
    val files = own.arguments().toScala.toSeq.flatten.filter(_.startsWith("@"))
    if (files.isEmpty || own.command().isEmpty) throw new IOException("this JVM does not know how it was started")
    val builder = new ProcessBuilder((own.command().get() +: (files ++ options ++ main)).asJava)
      .redirectOutput(output)
      .redirectError(Redirect.DISCARD)
    builder.environment().putAll(env.asJava)
    builder.start()
  }
}

/** What a worker and the JobMaster are to an application, for practice: `launch` is to start its executor, and may block. */
private[slotwise] class PracticeWorker(launch: ObjectNode => Unit) {
  private val Port = "SLOTWISE_BRIDGE_PORT"
  private val Token = "SLOTWISE_BRIDGE_TOKEN"
  private val token = UUID.randomUUID().toString

  def during(body: => Unit): Unit = {
    val listening = new ServerSocket(0, 8, InetAddress.getLoopbackAddress)
    val environment = WarmJvm.environment
    try {
      environment.put(Port, listening.getLocalPort.toString)
      environment.put(Token, token)
      daemon { while (true) { val connection = listening.accept(); daemon(serve(connection)) } }
      body
    } finally {
      Seq(Port, Token).foreach(environment.remove)
      listening.close()
    }
  }

  private def daemon(body: => Unit): Unit = {
    // Sockets that are closed end it.
    val thread = new Thread(() => try body catch { case _: IOException => }, "practice-worker")
    thread.setDaemon(true)
    thread.start()
  }

  /** One application: nobody else on this machine knows the token. */
  private def serve(connection: Socket): Unit = try {
    val lines = new BufferedReader(new InputStreamReader(connection.getInputStream, UTF_8))
    val reports = Iterator.continually(lines.readLine()).takeWhile(_ != null).map(BridgeLink.Json.readTree)
    var launched = !reports.nextOption().exists(_.path("hello").path("token").asText() == token)
    reports.map(_.path("report")).foreach { report =>
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
        daemon(launch(executor))
      }
    }
  } finally connection.close()
}

/**
 * The driver for an executor's practice, in a JVM of its own. It writes a line of JSON for each application that wants an
 * executor, and ends with its standard input at the latest. Arguments: a folder, and how many rounds of work the first
 * application is to do; the second does one.
 */
object PracticeDriver {
  def main(arguments: Array[String]): Unit = {
    val Array(folder, rounds) = arguments
    val watch = new Thread(() => { while (System.in.read() >= 0) {}; Runtime.getRuntime.halt(1) }, "practice-parent")
    watch.setDaemon(true)
    watch.start()
    for ((work, number) <- Seq(rounds.toInt, 1).zipWithIndex) {
      val conf = PracticeCluster.conf(Path.of(folder, s"application-$number"))
      val secret = conf.get("spark.authenticate.secret")
      new PracticeWorker(executor => println(executor.put("secret", secret))).during {
        val session = SparkSession.builder().config(conf).getOrCreate()
        // Other queries than those that the executor's JVM has had in local mode: it keeps what it generates.
        try for (round <- 1 to work) WarmUp.work(session, Path.of(folder, s"$number-$round"), 100 * (number + 1) + round)
        finally session.stop()
      }
    }
    System.exit(0)
  }
}
