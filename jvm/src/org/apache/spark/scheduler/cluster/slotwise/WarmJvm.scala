package org.apache.spark.scheduler.cluster.slotwise

import java.lang.management.ManagementFactory
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path, Paths}
import java.util.{Map => JavaMap, Properties}
import java.util.concurrent.atomic.AtomicBoolean
import javax.management.{JMException, ObjectName}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.sun.management.HotSpotDiagnosticMXBean
import org.apache.hadoop.security.UserGroupInformation

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.executor.CoarseGrainedExecutorBackend
import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.datasources.FileStatusCache
import org.apache.spark.sql.internal.StaticSQLConf
import org.apache.spark.util.Utils

/**
 * A JVM that is started before anybody needs it. It does a little work of its own, forgets it, and waits for the order to
 * become a driver's JVM or an executor: once. Arguments: how many rounds of work, a file or nothing, and a folder.
 *
 * With a file a Python has its part in the work: see [[Practice]].
 *
 * In the folder it makes the file `ready`, reads the order from the pipe `order`, and makes the file `taken`. The order is
 * a JSON object: `env` (the whole environment), `properties`, `cwd`, `main` (a class) and `args`.
 */
object WarmJvm extends Logging {

  def main(arguments: Array[String]): Unit = {
    val folder = Paths.get(arguments(2)).toAbsolutePath
    val rounds = arguments(0).toInt
    AbsentClasses.remember()
    warmUp(rounds, folder) { place =>
      if (arguments(1).nonEmpty) {
        WarmUp.rounds(place, rounds)
        Practice.withPython(Paths.get(arguments(1)), place, rounds)
      } else {
        WarmUp.rounds(place, rounds)
        // Secrets of contexts in local mode come before those of others.
        UserGroupInformation.reset()
        try PracticeCluster.withDriver(place, rounds)
        // There is less prepared then.
        catch { case NonFatal(e) => logWarning("an executor could not practise", e) }
      }
    }
    Files.createFile(folder.resolve("ready"))
    // Blocks until somebody writes.
    val order = BridgeLink.Json.readTree(Files.readAllBytes(folder.resolve("order")))
    become(order)
    Files.createFile(folder.resolve("taken"))
    val words = order.get("args").elements().asScala.map(_.asText()).toArray
    Class.forName(order.get("main").asText()).getMethod("main", classOf[Array[String]]).invoke(null, words)
  }

  /** Does `rounds` of work in `folder`, and practises there, unless this JVM has done so before. */
  private[slotwise] def warmUp(rounds: Int, folder: Path)(practise: Path => Unit): Unit =
    if (warm.compareAndSet(false, true)) {
      val before = System.getProperties.clone().asInstanceOf[Properties]
      clearSettings()
      val place = folder.resolve("warm-up")
      if (rounds > 0) practise(place)
      WarmUp.remove(place)
      // Of a practice that has failed.
      SparkContext.getActive.foreach(_.stop())
      clearSettings()
      for (_ <- 1 to Orders) become(order(before))
      forget(before)
    }

  private val Orders = 4

  /** An order that changes nothing: what comes after `ready` is to be quick. */
  private def order(properties: Properties): JsonNode = {
    val made = BridgeLink.Json.createObjectNode()
    val env = made.putObject("env")
    System.getenv().forEach((name, value) => env.put(name, value))
    made.putObject("properties")
    made.put("cwd", properties.getProperty("user.dir"))
    BridgeLink.Json.readTree(made.toString)
  }

  private val warm = new AtomicBoolean

  /** Nothing of the work may be seen by whoever gets this JVM; what stays are loaded and compiled classes. */
  private def forget(before: Properties): Unit = {
    SparkSession.clearActiveSession()
    SparkSession.clearDefaultSession()
    SparkEnv.set(null)
    Utils.clearLocalRootDirs()
    UserGroupInformation.reset()
    FileStatusCache.resetForTesting()
    // Those that Java and its libraries set on first use are as they would be.
    clearSettings()
    before.stringPropertyNames().asScala.foreach(name => System.setProperty(name, before.getProperty(name)))
  }

  private[slotwise] def clearSettings(): Unit =
    System.getProperties.stringPropertyNames().asScala.filter(_.startsWith("spark.")).foreach(System.clearProperty)

  /** To be called before the last practice: the first one after it finds all compiled code behind a barrier. */
  def tidy(): Unit = {
    // Contexts in local mode leave their secrets there, which come before those of others.
    UserGroupInformation.reset()
    giveBackMemory()
  }

  /** The heap has grown for work that is over: give the kernel back what is free of it. */
  private def giveBackMemory(): Unit = {
    val bean = ManagementFactory.getPlatformMXBean(classOf[HotSpotDiagnosticMXBean])
    val ratios = Seq("MinHeapFreeRatio", "MaxHeapFreeRatio")
    val usual = ratios.map(name => bean.getVMOption(name).getValue)
    try {
      ratios.foreach(name => bean.setVMOption(name, "5"))
      // The collector shrinks the heap in several steps.
      for (_ <- 1 to 4) System.gc()
    } finally ratios.zip(usual).reverse.foreach { case (name, value) => bean.setVMOption(name, value) }
    // So much for the heap; what compiling has left behind. Not every Java and not every C library can do it.
    try {
      val commands = new ObjectName("com.sun.management:type=DiagnosticCommand")
      ManagementFactory.getPlatformMBeanServer.invoke(commands, "systemTrimNativeHeap", null, null)
    } catch { case _: JMException => }
  }

  private def become(order: JsonNode): Unit = {
    val env = order.get("env").properties().asScala.map(entry => entry.getKey -> entry.getValue.asText()).toMap
    environment.clear()
    environment.putAll(env.asJava)
    val properties = order.get("properties").properties().asScala
    properties.foreach(entry => System.setProperty(entry.getKey, entry.getValue.asText()))
    // Spark does this when it first sees Hadoop's settings, which was too early here.
    val own = properties.exists(_.getKey.startsWith("spark.hadoop."))
    UserGroupInformation.setConfiguration(if (own) new SparkHadoopUtil().conf else usualHadoop)
    Option(order.get("cwd")).filterNot(_.isNull).foreach(cwd => WorkingDirectory.change(cwd.asText()))
  }

  /** Hadoop's settings where a job has none of its own; to read them takes a while. */
  private lazy val usualHadoop = new SparkHadoopUtil().conf

  /** What `System.getenv` sees, and processes that are started with an environment made from it, as Spark's are. */
  private[slotwise] def environment: JavaMap[String, String] = {
    val field = Class.forName("java.lang.ProcessEnvironment").getDeclaredField("theUnmodifiableEnvironment")
    field.setAccessible(true)
    val unmodifiable = field.get(null)
    val inner = unmodifiable.getClass.getDeclaredField("m")
    inner.setAccessible(true)
    inner.get(unmodifiable).asInstanceOf[JavaMap[String, String]]
  }
}

/** An executor of a warm application: it works first, for itself. Arguments: how much, then the executor's own. */
object WarmExecutor {
  def main(arguments: Array[String]): Unit = {
    AbsentClasses.remember()
    WarmJvm.warmUp(arguments.head.toInt, Paths.get("").toAbsolutePath) { place =>
      WarmUp.rounds(place, arguments.head.toInt)
      WarmJvm.tidy()
    }
    CoarseGrainedExecutorBackend.main(arguments.tail)
  }
}

/** Changes the working directory of this JVM, for what resolves names from now on. */
private object WorkingDirectory {

  def change(folder: String): Unit = {
    System.setProperty("user.dir", folder)
    forFiles(folder)
    forPaths(folder)
    forProcess(folder)
    forTables()
  }

  /** `java.io.File` remembers it from the JVM's start. */
  private def forFiles(folder: String): Unit = {
    val holder = classOf[java.io.File].getDeclaredFields.find(field => Set("fs", "FS").contains(field.getName)).get
    holder.setAccessible(true)
    set(holder.get(null), "userDir", folder)
  }

  /** So do `java.nio.file` paths. */
  private def forPaths(folder: String): Unit = {
    val system = Path.of("/").getFileSystem
    set(system, "defaultDirectory", folder.getBytes(UTF_8))
    // Otherwise relative paths go to the kernel as they are.
    set(system, "needToResolveAgainstDefaultDirectory", true)
  }

  /** Spark computes the default place of tables once. */
  private def forTables(): Unit =
    set(StaticSQLConf.WAREHOUSE_PATH, "_defaultValue", Utils.resolveURI("spark-warehouse").toString)

  /**
   * The kernel's own idea, which plain streams and native code go by. Java can call the C library from version 22 on; before, they see the
   * old one: see `docs/warm-starts.md`.
   */
  private def forProcess(folder: String): Unit = try {
    val allocate = Class.forName("java.lang.foreign.SegmentAllocator").getMethod("allocateFrom", classOf[String])
    val linker = Class.forName("java.lang.foreign.Linker")
    val native = linker.getMethod("nativeLinker").invoke(null)
    val lookup = linker.getMethod("defaultLookup").invoke(native)
    val segment = Class.forName("java.lang.foreign.MemorySegment")
    val chdir = Class.forName("java.lang.foreign.SymbolLookup").getMethod("find", classOf[String])
      .invoke(lookup, "chdir").asInstanceOf[java.util.Optional[AnyRef]].get()
    val layouts = Class.forName("java.lang.foreign.ValueLayout")
    val layout = Class.forName("java.lang.foreign.MemoryLayout")
    val descriptor = Class.forName("java.lang.foreign.FunctionDescriptor")
    val parameters = java.lang.reflect.Array.newInstance(layout, 1).asInstanceOf[Array[AnyRef]]
    parameters(0) = layouts.getField("ADDRESS").get(null)
    val signature = descriptor.getMethod("of", layout, parameters.getClass)
      .invoke(null, layouts.getField("JAVA_INT").get(null), parameters)
    val options = Class.forName("java.lang.foreign.Linker$Option")
    val noOptions = java.lang.reflect.Array.newInstance(options, 0).asInstanceOf[Array[AnyRef]]
    val handle = linker.getMethod("downcallHandle", segment, descriptor, noOptions.getClass)
      .invoke(native, chdir, signature, noOptions).asInstanceOf[java.lang.invoke.MethodHandle]
    val arenas = Class.forName("java.lang.foreign.Arena")
    val arena = arenas.getMethod("global").invoke(null)
    val text = allocate.invoke(arena, folder)
    handle.invokeWithArguments(text)
  } catch {
    case _: ClassNotFoundException | _: NoSuchMethodException =>
  }

  private def set(holder: AnyRef, name: String, value: Any): Unit = {
    var owner: Class[_] = holder.getClass
    while (!owner.getDeclaredFields.exists(_.getName == name)) owner = owner.getSuperclass
    val field = owner.getDeclaredField(name)
    field.setAccessible(true)
    field.set(holder, value)
  }
}
