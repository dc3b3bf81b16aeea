package org.apache.spark.scheduler.cluster.slotwise

import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.internal.Logging

/** Where the settings of a Hadoop configuration come from: the names of files, of interest to people only. */
private[slotwise] object HadoopSources extends Logging {

  /**
   * Has `configuration` forget them, so that it is soon written and read. Whoever reads or writes files sends it along
   * with tasks, and for each of its 1100 settings Hadoop packs the source by gzip, one at a time: nine of ten
   * milliseconds a time, some five times for a small query. The settings themselves stay.
   */
  def forget(configuration: Configuration): Unit = try {
    val sources = classOf[Configuration].getDeclaredField("updatingResource")
    sources.setAccessible(true)
    sources.set(configuration, new Nowhere)
  } catch {
    // Another Hadoop than Spark's: as slow as before.
    case NonFatal(e) => logDebug("the sources of Hadoop's settings stay", e)
  }

  /** Keeps nothing: Hadoop reads all files again when a class with settings of its own is loaded. */
  private class Nowhere extends ConcurrentHashMap[String, Array[String]] {
    override def put(setting: String, sources: Array[String]): Array[String] = null
  }
}
