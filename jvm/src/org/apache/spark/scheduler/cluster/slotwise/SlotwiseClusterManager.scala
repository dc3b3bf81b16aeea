/*
 * The entry of the bridge: Spark's service loader finds it for masters that start with `spark+slotwise://`.
 *
 * The package lies under org.apache.spark because what a cluster manager extends is private[spark].
 */
package org.apache.spark.scheduler.cluster.slotwise

import org.apache.spark.{SparkConf, SparkContext, SparkException}
import org.apache.spark.resource.{ResourceProfile, ResourceProfileManager}
import org.apache.spark.scheduler._

private[spark] class SlotwiseClusterManager extends ExternalClusterManager {

  override def canCreate(masterURL: String): Boolean = masterURL.startsWith(SlotwiseClusterManager.Scheme)

  override def createTaskScheduler(sc: SparkContext, masterURL: String): TaskScheduler = {
    AnyProfileManager.install(sc)
    HadoopSources.forget(sc.hadoopConfiguration)
    new SlotwiseTaskScheduler(sc)
  }

  override def createSchedulerBackend(
      sc: SparkContext,
      masterURL: String,
      scheduler: TaskScheduler): SchedulerBackend = {
    val address = BridgeAddress.fromEnvironment(sys.env).getOrElse {
      throw new SparkException(
        s"master $masterURL works only for a driver that a Slotwise worker has started; use `slotwise run` or submit")
    }
    new SlotwiseSchedulerBackend(scheduler.asInstanceOf[SlotwiseTaskScheduler], sc, address)
  }

  override def initialize(scheduler: TaskScheduler, backend: SchedulerBackend): Unit =
    scheduler.asInstanceOf[TaskSchedulerImpl].initialize(backend)
}

private[spark] object SlotwiseClusterManager {
  val Scheme = "spark+slotwise://"
}

/**
 * Allows every resource profile. Spark's own manager allows `rdd.withResources` for the masters it knows by name only,
 * and executors of other sizes only with dynamic allocation; here slots have any size in both cases.
 */
private[spark] class AnyProfileManager(conf: SparkConf, bus: LiveListenerBus) extends ResourceProfileManager(conf, bus) {
  override private[spark] def isSupported(profile: ResourceProfile): Boolean = true
}

private[spark] object AnyProfileManager {

  /**
   * Replaces the manager of `sc`. SparkContext creates it just before the task scheduler and has no hook for another
   * one, so its private field is set; whoever asks for it (DAG scheduler, dynamic allocation) does so later.
   */
  def install(sc: SparkContext): Unit = {
    val field = classOf[SparkContext].getDeclaredField("_resourceProfileManager")
    field.setAccessible(true)
    field.set(sc, new AnyProfileManager(sc.conf, sc.listenerBus))
  }
}
