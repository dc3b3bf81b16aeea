package org.apache.spark.scheduler.cluster.slotwise

import scala.collection.mutable

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.Success
import org.apache.spark.scheduler._

/**
 * Counts the tasks of the active stages. The bus may drop events of a very busy application; then numbers of a stage
 * are a little low until the stage ends, and nothing but what people see depends on them.
 */
private[slotwise] class ProgressListener(link: => BridgeLink, stageSubmitted: StageInfo => Unit)
  extends SparkListener {

  private class Stage(val info: StageInfo, val region: String) {
    var done = 0
    var running = 0
    var failed = 0
  }

  private val stages = mutable.LinkedHashMap.empty[Int, Stage]
  private var tasksDone = 0L
  private var firstTaskMs: Option[Long] = None

  override def onStageSubmitted(event: SparkListenerStageSubmitted): Unit = {
    stageSubmitted(event.stageInfo)
    synchronized { stages(event.stageInfo.stageId) = new Stage(event.stageInfo, Regions.of(event.properties).getOrElse("")) }
    link.progress()
  }

  override def onStageCompleted(event: SparkListenerStageCompleted): Unit = {
    synchronized {
      if (stages.get(event.stageInfo.stageId).exists(_.info.attemptNumber() == event.stageInfo.attemptNumber())) {
        stages -= event.stageInfo.stageId
      }
    }
    link.progress()
  }

  override def onTaskStart(event: SparkListenerTaskStart): Unit = {
    val first = synchronized {
      current(event.stageId, event.stageAttemptId).foreach(_.running += 1)
      val isFirst = firstTaskMs.isEmpty
      if (isFirst) firstTaskMs = Some(event.taskInfo.launchTime)
      isFirst
    }
    // The first task is an event in a job's life, not only a number.
    if (first) link.changed() else link.progress()
  }

  override def onTaskEnd(event: SparkListenerTaskEnd): Unit = {
    val succeeded = event.reason == Success
    synchronized {
      if (succeeded) tasksDone += 1
      current(event.stageId, event.stageAttemptId).foreach { stage =>
        stage.running = math.max(0, stage.running - 1)
        // A task that also ran speculatively ends well twice.
        if (succeeded) stage.done = math.min(stage.done + 1, stage.info.numTasks) else stage.failed += 1
      }
    }
    link.progress()
  }

  override def onExecutorAdded(event: SparkListenerExecutorAdded): Unit = link.changed()

  override def onExecutorRemoved(event: SparkListenerExecutorRemoved): Unit = link.changed()

  private def current(stageId: Int, attempt: Int): Option[Stage] =
    stages.get(stageId).filter(_.info.attemptNumber() == attempt)

  /** The active stages of a pipeline's region. */
  def stagesOf(region: String): Seq[Int] = synchronized {
    stages.collect { case (id, stage) if stage.region == region => id }.toSeq
  }

  /** Counts from now on. */
  def forget(): Unit = synchronized {
    tasksDone = 0
    firstTaskMs = None
  }

  /** Adds `stages`, `tasks_done` and `first_task_unix_s` to a report. */
  def describe(report: ObjectNode): Unit = synchronized {
    val list = report.putArray("stages")
    stages.values.foreach { stage =>
      list.addObject()
        .put("stage_id", stage.info.stageId)
        .put("name", stage.info.name)
        .put("tasks", stage.info.numTasks)
        .put("done", stage.done)
        .put("running", stage.running)
        .put("failed", stage.failed)
        .put("region", stage.region)
    }
    report.put("tasks_done", tasksDone)
    firstTaskMs match {
      case Some(ms) => report.put("first_task_unix_s", ms / 1000.0)
      case None => report.putNull("first_task_unix_s")
    }
  }
}
