package org.apache.spark.scheduler.cluster.slotwise

import java.nio.file.{Path, Paths}
import java.util.{Map => JavaMap}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.api.java.JavaSparkContext
import org.apache.spark.scheduler.SparkListenerApplicationStart
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.classic.{SparkSession => ClassicSession}

/**
 * A context that is made before anybody knows what for. Used by `runner.py`, by the gateway: [[begin]], a little work,
 * [[rehearse]], [[ready]], [[listen]] until the program is known; then [[take]], when the program asks for a context.
 */
object WarmApplication {
  private val lock = new Object
  // Guarded by `lock`.
  private var context: Option[JavaSparkContext] = None
  private var requested = Map.empty[String, String]
  private var waits = false
  private var program = ""

  /**
   * Makes the context with the settings that a program without any of its own would ask for. `rounds`: how much this JVM
   * does for itself before, if it has not waited before.
   */
  def begin(conf: SparkConf, rounds: Int): JavaSparkContext = {
    // The program will speak to this thread, too.
    AbsentClasses.remember()
    WarmJvm.warmUp(rounds, folder) { place =>
      WarmUp.rounds(place, rounds)
      WarmJvm.tidy()
    }
    val wanted = settings(conf)
    val made = new JavaSparkContext(conf)
    lock.synchronized {
      requested = wanted
      context = Some(made)
    }
    made
  }

  /** Works in the context, on its executors, at least a little. Returns options for reading the file that it has read. */
  def work(rounds: Int): JavaMap[String, String] = {
    val files = PracticeFiles.options(folder)
    WarmUp.run(SparkSession.active, files, 101)
    val others = SparkSession.active.newSession()
    // Shuffles of fewer files: where a file system has just lost thousands, it takes longer to make the program's.
    others.conf.set("spark.sql.shuffle.partitions", "8")
    for (number <- 2 to 2 * rounds) WarmUp.run(others, files, 100 + number)
    files
  }

  private def folder: Path = Paths.get(System.getenv("SPARK_LOCAL_DIRS")).toAbsolutePath

  /** The work is done: nothing of it is to be seen, and the JobMaster may say what to run. */
  def ready(): Unit = {
    val sc = lock.synchronized(context).get.sc
    SparkSession.clearActiveSession()
    sc.listenerBus.waitUntilEmpty()
    backend(sc).forgetProgress()
    PracticeTraces.forget(sc)
    lock.synchronized { waits = true }
    backend(sc).programSpoke()
  }

  /** What is to be run, a JSON object; empty if nobody has said so in time. */
  def listen(timeoutMs: Long): String = lock.synchronized {
    if (program.isEmpty) lock.wait(timeoutMs)
    program
  }

  /**
   * The context, if it is what a program with these settings would have got; otherwise that is stopped, and null returned.
   * Settings that a session may change at any time are changed.
   */
  def take(conf: SparkConf): JavaSparkContext = {
    val made = lock.synchronized { val made = context.get; context = None; made }
    if (adapt(made, settings(conf))) made
    else {
      SparkSession.clearDefaultSession()
      made.stop()
      null
    }
  }

  /** What [[take]] does for a program without settings of its own, for practice: the context stays here. */
  def rehearse(conf: SparkConf): JavaSparkContext = {
    val made = lock.synchronized(context).get
    adapt(made, settings(conf))
    made
  }

  /** Whether the context can serve a program that asks for these settings; it has them then. */
  private def adapt(made: JavaSparkContext, wanted: Map[String, String]): Boolean = {
    val session = SparkSession.getDefaultSession
    val other = (wanted.keySet ++ requested.keySet).filter(key => wanted.get(key) != requested.get(key)) - AppName
    def changeable(key: String) = wanted.contains(key) && session.exists(_.conf.isModifiable(key))
    val fits = !made.sc.isStopped && other.forall(changeable)
    if (fits) {
      other.foreach { key =>
        made.sc.conf.set(key, wanted(key))
        session.foreach(_.conf.set(key, wanted(key)))
      }
      rename(made.sc, wanted(AppName))
    }
    fits
  }

  private[slotwise] def tell(order: JsonNode): Unit = lock.synchronized {
    if (program.isEmpty) {
      // What a new SparkConf begins with.
      System.setProperty(AppName, order.path("name").asText())
      program = order.toString
      waits = false
      lock.notifyAll()
    }
  }

  private[slotwise] def describe(report: ObjectNode): Unit = report.put("waits", lock.synchronized(waits))

  private val AppName = "spark.app.name"

  private def settings(conf: SparkConf): Map[String, String] = conf.getAll.toMap

  private def backend(sc: SparkContext): SlotwiseSchedulerBackend =
    sc.schedulerBackend.asInstanceOf[SlotwiseSchedulerBackend]

  /** For people: Spark has shown it under another name until now. */
  private def rename(sc: SparkContext, name: String): Unit = {
    sc.conf.set(AppName, name)
    SparkSession.getDefaultSession.foreach {
      case session: ClassicSession => session.sessionState.conf.setConfString(AppName, name)
      case _ =>
    }
    sc.ui.foreach(_.appName = name)
    sc.listenerBus.post(SparkListenerApplicationStart(
      name, Some(sc.applicationId), System.currentTimeMillis(), sc.sparkUser, sc.applicationAttemptId, None, None))
  }
}
