package org.apache.spark.scheduler.cluster.slotwise

import java.util.{Map => JavaMap}

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.internal.Logging

/** Where the settings of a Hadoop configuration come from: the names of files, of interest to people only. */
private[slotwise] object HadoopSources extends Logging {

  /**
   * Forgets them, so that the configuration is soon written and read. Whoever reads or writes files sends it along with
   * tasks, and for each of its 1100 settings Hadoop packs the source by gzip, one at a time: nine of ten milliseconds a
   * time, some five times for a small query. The settings themselves stay.
   */
  def forget(configuration: Configuration): Unit = try {
    // Nothing has been read before somebody asks.
    configuration.size()
    val sources = classOf[Configuration].getDeclaredField("updatingResource")
    sources.setAccessible(true)
    sources.get(configuration).asInstanceOf[JavaMap[_, _]].clear()
  } catch {
    // Another Hadoop than Spark's: as slow as before.
    case NonFatal(e) => logDebug("the sources of Hadoop's settings stay", e)
  }
}
