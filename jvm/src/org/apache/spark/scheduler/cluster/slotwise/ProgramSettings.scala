package org.apache.spark.scheduler.cluster.slotwise

import org.apache.spark.SparkConf

/** For `runner.py`, by the gateway. */
object ProgramSettings {

  /** All settings, as a JSON array of arrays of a name and a value. */
  def all(conf: SparkConf): String = {
    val told = BridgeLink.Json.createArrayNode()
    conf.getAll.foreach { case (name, value) => told.addArray().add(name).add(value) }
    told.toString
  }
}
