package org.apache.spark.scheduler.cluster.slotwise

import java.util.concurrent.TimeUnit

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{MissingNode, ObjectNode}

import org.apache.spark.SparkContext
import org.apache.spark.scheduler._

/**
 * Which executor belongs to which region of a pipeline. An application without regions has none here.
 *
 * A region's tasks run on its own executors alone, and wait where it has none. What Spark does on its own account, such
 * as looking into files for their schema, carries no region; it runs on executors without a region, and where the
 * application has none of those on any: it would wait for ever, and everything behind it.
 */
private[slotwise] class Regions(activeExecutors: () => Iterable[String]) {

  @volatile private var regionOf = Map.empty[String, String]

  /** The region of each executor that has one. */
  def assignment: Map[String, String] = regionOf

  /** Replaces the whole assignment. An executor that moves finishes the tasks it has, and gets its new region's next. */
  def assign(assignment: Map[String, String]): Unit = regionOf = assignment

  def mayRun(region: Option[String], executorId: String): Boolean = {
    val assignment = regionOf
    assignment.get(executorId) match {
      case None => region.isEmpty
      case own if region.isDefined => own == region
      case _ => !activeExecutors().exists(id => !assignment.contains(id))
    }
  }
}

private[slotwise] object Regions {
  /** The local property, or session configuration, that names the region of what runs under it. */
  val Property = "spark.slotwise.region"

  def of(properties: java.util.Properties): Option[String] =
    Option(properties).flatMap(all => Option(all.getProperty(Property))).filter(_.nonEmpty)
}

/**
 * For pipeline programs, by the gateway: what the program and its JobMaster say to each other. Nobody here understands it.
 *
 * Both sides say all that holds, not what has changed: only the newest of each is kept.
 */
object PipelineControl {
  private val lock = new Object
  // Guarded by `lock`.
  private var said: JsonNode = MissingNode.getInstance()
  private var told = ""
  private var version = 0L

  /** The program's word for the JobMaster, a JSON object. */
  def say(text: String): Unit = {
    val node = BridgeLink.Json.readTree(text)
    lock.synchronized { said = node }
    backend.foreach(_.programSpoke())
  }

  /** The JobMaster's word after number `seen`: its number, a blank and a JSON object. Empty if none comes in time. */
  def listen(seen: Long, timeoutMs: Long): String = lock.synchronized {
    val deadlineNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs)
    var leftMs = timeoutMs
    while (version <= seen && leftMs > 0) {
      lock.wait(leftMs)
      leftMs = TimeUnit.NANOSECONDS.toMillis(deadlineNs - System.nanoTime())
    }
    if (version > seen) s"$version $told" else ""
  }

  /** Ends what runs of this region; closing the session under it does not. */
  def cancel(region: String): Unit = backend.foreach(_.cancelRegion(region))

  private[slotwise] def tell(text: String): Unit = lock.synchronized {
    if (text != told) {
      told = text
      version += 1
      lock.notifyAll()
    }
  }

  private[slotwise] def describe(report: ObjectNode): Unit = {
    val node = lock.synchronized(said)
    if (node.isObject) report.set[ObjectNode]("pipeline", node)
  }

  private def backend: Option[SlotwiseSchedulerBackend] = SparkContext.getActive.map(_.schedulerBackend).collect {
    case ours: SlotwiseSchedulerBackend => ours
  }
}

/** Spark's own scheduler, but for the executors that it offers to a task set. */
private[slotwise] class SlotwiseTaskScheduler(sc: SparkContext) extends TaskSchedulerImpl(sc) {

  val regions = new Regions(() => backend match {
    case ours: SlotwiseSchedulerBackend => ours.activeExecutors
    case _ => Nil
  })

  override private[scheduler] def createTaskSetManager(taskSet: TaskSet, maxTaskFailures: Int): TaskSetManager = {
    val region = Regions.of(taskSet.properties)
    new RegionTaskSetManager(
      this, taskSet, maxTaskFailures, healthTrackerOpt, executorId => regions.mayRun(region, executorId))
  }
}
