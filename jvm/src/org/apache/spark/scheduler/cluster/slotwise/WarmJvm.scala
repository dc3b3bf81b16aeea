package org.apache.spark.scheduler.cluster.slotwise

import java.lang.management.ManagementFactory
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path, Paths}
import java.util.{Map => JavaMap, Properties}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.sun.management.HotSpotDiagnosticMXBean
import org.apache.hadoop.security.UserGroupInformation

import org.apache.spark.{HeartbeatReceiver, SecurityManager, SparkConf, SparkContext, SparkEnv}
import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.rpc.RpcEnv
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.datasources.FileStatusCache
import org.apache.spark.sql.internal.StaticSQLConf
import org.apache.spark.util.Utils

/**
 * A JVM that is started before anybody needs it. It does a little work of its own, forgets it, and waits for the order to
 * become a driver's JVM or an executor: once. Arguments: how many rounds of work, and a folder.
 *
 * In the folder it makes the file `ready`, reads the order from the pipe `order`, and makes the file `taken`. The order is
 * a JSON object: `env` (the whole environment), `properties`, `cwd`, `main` (a class) and `args`.
 */
object WarmJvm {

  def main(arguments: Array[String]): Unit = {
    val folder = Paths.get(arguments(1)).toAbsolutePath
    val before = System.getProperties.clone().asInstanceOf[Properties]
    for (round <- 1 to arguments(0).toInt) WarmUp.run(folder.resolve(s"warm-up-$round"))
    forget(before)
    // What comes after `ready` must be quick.
    BridgeLink.Json.createObjectNode()
    Files.createFile(folder.resolve("ready"))
    // Blocks until somebody writes.
    val order = BridgeLink.Json.readTree(Files.readAllBytes(folder.resolve("order")))
    become(order)
    Files.createFile(folder.resolve("taken"))
    val words = order.get("args").elements().asScala.map(_.asText()).toArray
    Class.forName(order.get("main").asText()).getMethod("main", classOf[Array[String]]).invoke(null, words)
  }

  /** Nothing of the work may be seen by whoever gets this JVM; what stays are loaded and compiled classes. */
  private def forget(before: Properties): Unit = {
    SparkSession.clearActiveSession()
    SparkSession.clearDefaultSession()
    SparkEnv.set(null)
    Utils.clearLocalRootDirs()
    UserGroupInformation.reset()
    FileStatusCache.resetForTesting()
    // Those that Java and its libraries set on first use are as they would be.
    System.getProperties.stringPropertyNames().asScala.filter(_.startsWith("spark.")).foreach(System.clearProperty)
    before.stringPropertyNames().asScala.foreach(name => System.setProperty(name, before.getProperty(name)))
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
  }

  private def become(order: JsonNode): Unit = {
    val env = order.get("env").properties().asScala.map(entry => entry.getKey -> entry.getValue.asText()).toMap
    environment.clear()
    environment.putAll(env.asJava)
    order.get("properties").properties().asScala.foreach { entry =>
      System.setProperty(entry.getKey, entry.getValue.asText())
    }
    // Spark does this when it first sees Hadoop's settings, which was too early here.
    UserGroupInformation.setConfiguration(new SparkHadoopUtil().conf)
    Option(order.get("cwd")).filterNot(_.isNull).foreach(cwd => WorkingDirectory.change(cwd.asText()))
  }

  /** What `System.getenv` sees, and processes that are started with an environment made from it, as Spark's are. */
  private def environment: JavaMap[String, String] = {
    val field = Class.forName("java.lang.ProcessEnvironment").getDeclaredField("theUnmodifiableEnvironment")
    field.setAccessible(true)
    val unmodifiable = field.get(null)
    val inner = unmodifiable.getClass.getDeclaredField("m")
    inner.setAccessible(true)
    inner.get(unmodifiable).asInstanceOf[JavaMap[String, String]]
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

/** A small job, for the sake of the classes that it has the JVM load and compile. */
private object WarmUp {

  def run(folder: Path): Unit = {
    val session = SparkSession.builder().config(conf(folder)).getOrCreate()
    try {
      shakeHands(session.sparkContext)
      for (number <- 1 to 3) {
        tables(session, folder.resolve(s"table-$number").toString)
        pairs(session.sparkContext)
      }
    } finally {
      session.stop()
      try Utils.deleteRecursively(folder.toFile) catch { case NonFatal(_) => }
    }
  }

  private def conf(folder: Path): SparkConf = new SparkConf()
    .setMaster("local[2]")
    .setAppName("warm-up")
    .set("spark.driver.host", "127.0.0.1")
    .set("spark.driver.bindAddress", "127.0.0.1")
    .set("spark.ui.port", "0")
    .set("spark.ui.showConsoleProgress", "false")
    .set("spark.sql.warehouse.dir", folder.resolve("warehouse").toString)
    .set("spark.sql.shuffle.partitions", "2")
    .set("spark.authenticate", "true")
    .set("spark.authenticate.secret", java.util.UUID.randomUUID().toString)
    .set("spark.network.crypto.enabled", "true")
    .set("spark.network.crypto.saslFallback", "false")

  /** A connection as executors make it, encrypted. */
  private def shakeHands(context: SparkContext): Unit = {
    val conf = context.conf
    val client = RpcEnv.create("warm-up", "127.0.0.1", "127.0.0.1", 0, conf, new SecurityManager(conf), 0, clientMode = true)
    try client.setupEndpointRef(context.env.rpcEnv.address, HeartbeatReceiver.ENDPOINT_NAME)
    finally client.shutdown()
  }

  private def tables(session: SparkSession, path: String): Unit = {
    session.range(0, 4000, 1, 2)
      .selectExpr("id % 7 as k", "id as v", "cast(id as double) as d", "concat('n', id % 11) as s")
      .write.parquet(path)
    val table = session.read.parquet(path)
    table.groupBy("k").count().collect()
    table.createOrReplaceTempView("t")
    session.sql("select k, s, sum(v), avg(d), max(s) from t where v > 10 group by k, s order by k, s").collect()
    session.sql("select a.s, count(distinct b.v) from t a join t b on a.v = b.v group by a.s").collect()
    session.sql("select *, row_number() over (partition by k order by v) n from t limit 5").collect()
    session.catalog.dropTempView("t")
  }

  private def pairs(context: SparkContext): Unit = {
    val shared = context.broadcast(7)
    val counts = context.parallelize(1 to 1000, 4).map(n => (n % shared.value, 1)).reduceByKey(_ + _, 2)
    assert(counts.collect().map(_._2).sum == 1000)
    shared.destroy()
  }
}
