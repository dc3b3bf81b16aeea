package org.apache.spark.scheduler.cluster.slotwise

import org.apache.spark.scheduler._

/**
 * A task set that is offered only the executors which `mayRunOn` allows. Spark 4.3 and later: a task may take a part of a core.
 *
 * What is not allowed counts as an offer without a fitting task, not as one that was rejected while waiting for a better
 * place: delay scheduling goes on as if the other executors did not exist.
 */
private[slotwise] class RegionTaskSetManager(
    scheduler: TaskSchedulerImpl,
    taskSet: TaskSet,
    maxFailures: Int,
    healthTracker: Option[HealthTracker],
    mayRunOn: String => Boolean)
  extends TaskSetManager(scheduler, taskSet, maxFailures, healthTracker) {

  override def resourceOffer(
      executorId: String,
      host: String,
      maxLocality: TaskLocality.TaskLocality,
      taskCpus: BigDecimal,
      assignments: Map[String, Map[String, Long]]): (Option[TaskDescription], Boolean, Int) =
    if (mayRunOn(executorId)) super.resourceOffer(executorId, host, maxLocality, taskCpus, assignments)
    else (None, false, 0)
}
