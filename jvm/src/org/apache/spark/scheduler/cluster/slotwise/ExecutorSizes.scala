package org.apache.spark.scheduler.cluster.slotwise

import java.io.File

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.{SecurityManager, SparkConf, SparkContext}
import org.apache.spark.internal.config._
import org.apache.spark.launcher.JavaModuleOptions
import org.apache.spark.resource.ResourceProfile
import org.apache.spark.util.Utils

/** What an executor must be: its size by resource profile, and what its JVM is started with. */
private[slotwise] object ExecutorSizes {

  private val MiB = 1024L * 1024L

  /** Writes the size of an executor of `profile`, by the same rules as Spark on YARN and Kubernetes. */
  def describe(profile: ResourceProfile, conf: SparkConf, size: ObjectNode): Unit = {
    val resources = ResourceProfile.getResourcesForClusterManager(
      profile.id,
      profile.executorResources,
      conf.get(EXECUTOR_MIN_MEMORY_OVERHEAD),
      conf.get(EXECUTOR_MEMORY_OVERHEAD_FACTOR),
      conf,
      true,
      Map.empty)
    size
      .put("cores", resources.cores.getOrElse(1))
      .put("heap_bytes", resources.executorMemoryMiB * MiB)
      .put("overhead_bytes", resources.memoryOverheadMiB * MiB)
      .put("off_heap_bytes", resources.memoryOffHeapMiB * MiB)
      .put("python_bytes", resources.pysparkMemoryMiB * MiB)
    val extended = size.putArray("extended")
    resources.customResources.toSeq.sortBy(_._1).foreach {
      case (name, request) if request.amount > 0 => extended.addArray().add(name).add(request.amount)
      case _ => ()
    }
  }

  /** Writes what every executor of this application is started with; never a secret. */
  def describeLaunch(sc: SparkContext, launch: ObjectNode): Unit = {
    val startup = launch.putObject("startup_conf")
    sc.conf.getAll.sortBy(_._1).foreach {
      case (key, value)
          if SparkConf.isExecutorStartupConf(key) && key != SecurityManager.SPARK_AUTH_SECRET_CONF =>
        startup.put(key, value)
      case _ => ()
    }
    // SparkContext puts the module options of the driver's Java in front; the worker knows the executor's Java better.
    val options = sc.conf.get(EXECUTOR_JAVA_OPTIONS).getOrElse("")
      .replace(JavaModuleOptions.defaultModuleOptions(), " ")
    val words = launch.putArray("java_options")
    Utils.splitCommandString(options).foreach(word => words.add(word))
    def paths(name: String, value: Option[String]): Unit = {
      val entries = launch.putArray(name)
      value.toSeq.flatMap(_.split(File.pathSeparator)).filter(_.nonEmpty).foreach(entry => entries.add(entry))
    }
    paths("class_path", sc.conf.get(EXECUTOR_CLASS_PATH))
    paths("library_path", sc.conf.get(EXECUTOR_LIBRARY_PATH))
    val env = launch.putObject("env")
    sc.executorEnvs.toSeq.sortBy(_._1).foreach { case (key, value) => if (value != null) env.put(key, value) }
  }
}
