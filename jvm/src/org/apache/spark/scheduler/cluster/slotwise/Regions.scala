package org.apache.spark.scheduler.cluster.slotwise

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

/** For pipeline programs, by the gateway. */
object RegionControl {
  /** Ends what runs of this region; closing the session under it does not. */
  def cancel(region: String): Unit = SparkContext.getActive.map(_.schedulerBackend) match {
    case Some(backend: SlotwiseSchedulerBackend) => backend.cancelRegion(region)
    case _ => ()
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
