package org.apache.spark.scheduler.cluster.slotwise

import org.apache.spark.SparkContext
import org.apache.spark.sql.execution.ui.{SparkPlanGraphWrapper, SQLExecutionUIData}
import org.apache.spark.status._
import org.apache.spark.util.kvstore.{KVIndex, KVTypeInfo}

/** What Spark's own pages and its REST API tell of the jobs of a context. */
private[slotwise] object PracticeTraces {
  private val Kinds = Seq[Class[_]](
    classOf[JobDataWrapper], classOf[StageDataWrapper], classOf[TaskDataWrapper], classOf[ExecutorStageSummaryWrapper],
    classOf[SpeculationStageSummaryWrapper], classOf[RDDOperationGraphWrapper], classOf[CachedQuantile],
    classOf[SQLExecutionUIData], classOf[SparkPlanGraphWrapper])

  /** As if there had been none; all of them have ended, and all listeners know. Only their numbers are used up. */
  def forget(context: SparkContext): Unit = {
    val status = context.statusStore
    for (kind <- Kinds) {
      val described = new KVTypeInfo(kind)
      val known = KVUtils.viewToSeq(status.store.view(kind))
      known.foreach(each => status.store.delete(kind, described.getIndexValue(KVIndex.NATURAL_INDEX_NAME, each)))
    }
    status.listener.foreach { listener =>
      val none = new AppSummary(0, 0)
      val set = listener.getClass.getDeclaredMethod("appSummary_$eq", classOf[AppSummary])
      set.setAccessible(true)
      set.invoke(listener, none)
      status.store.write(none)
      listener.liveExecutors.values.foreach(forget(_, status.store.asInstanceOf[ElementTrackingStore]))
    }
  }

  private def forget(executor: LiveExecutor, store: ElementTrackingStore): Unit = {
    executor.totalTasks = 0
    executor.completedTasks = 0
    executor.failedTasks = 0
    executor.totalDuration = 0
    executor.totalGcTime = 0
    executor.totalInputBytes = 0
    executor.totalShuffleRead = 0
    executor.totalShuffleWrite = 0
    executor.write(store, System.nanoTime())
  }
}
