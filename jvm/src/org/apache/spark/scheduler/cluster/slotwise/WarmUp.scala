package org.apache.spark.scheduler.cluster.slotwise

import java.nio.file.Path

import scala.util.control.NonFatal

import org.apache.spark.{HeartbeatReceiver, SecurityManager, SparkConf, SparkContext}
import org.apache.spark.rpc.RpcEnv
import org.apache.spark.sql.{DataFrame, SparkSession}
import org.apache.spark.util.Utils

/**
 * Small jobs, for the sake of the classes that they have the JVM load and compile. What Spark generates for a query it
 * keeps, so each query is another one each time: it is the generating that is to be quick.
 */
private[slotwise] object WarmUp {

  private val ContextsARound = 2
  private val Hands = 10

  /** Work in local mode, with files below `folder`. */
  def rounds(folder: Path, rounds: Int): Unit = {
    for (round <- 1 to rounds) run(folder.resolve(s"round-$round"), round)
    contexts(folder.resolve("contexts"), rounds * ContextsARound)
  }

  private def run(folder: Path, round: Int): Unit = {
    val session = SparkSession.builder().config(conf(folder)).getOrCreate()
    try {
      shakeHands(session.sparkContext)
      work(session, folder, round)
    } finally {
      session.stop()
      remove(folder)
    }
  }

  /** That work, in a context that is there and whose executors can read and write below `folder`. */
  def work(session: SparkSession, folder: Path, round: Int): Unit = {
    val path = folder.resolve("table").toString
    table(session).write.parquet(path)
    session.read.parquet(path).groupBy("k").count().collect()
    queries(session, session.read.parquet(path), round)
    pairs(session.sparkContext)
  }

  /** The same kind of work in a context that is there, without files: its executors may be on other machines. */
  def run(session: SparkSession, number: Int): Unit = {
    queries(session, table(session), number)
    pairs(session.sparkContext)
  }

  /** So many contexts, one after the other, with next to no work. */
  private def contexts(folder: Path, count: Int): Unit = try {
    for (_ <- 1 to count) {
      val context = new SparkContext(conf(folder))
      try {
        shakeHands(context)
        context.parallelize(1 to 10, 2).count()
      } finally context.stop()
    }
  } finally remove(folder)

  /** Removes what the work has left in `folder`; where it cannot, the unit's end does. */
  def remove(folder: Path): Unit = try Utils.deleteRecursively(folder.toFile) catch { case NonFatal(_) => }

  /** The settings of a context for such work in `folder`. */
  def conf(folder: Path): SparkConf = new SparkConf()
    .setMaster("local[2]")
    .setAppName("warm-up")
    .set("spark.driver.host", "127.0.0.1")
    .set("spark.driver.bindAddress", "127.0.0.1")
    .set("spark.ui.port", "0")
    .set("spark.ui.showConsoleProgress", "false")
    .set("spark.sql.warehouse.dir", folder.resolve("warehouse").toString)
    .set("spark.sql.shuffle.partitions", "2")
    // By default pages are some tens of megabytes, for a few rows here.
    .set("spark.buffer.pageSize", "1m")
    .set("spark.authenticate", "true")
    .set("spark.authenticate.secret", java.util.UUID.randomUUID().toString)
    .set("spark.network.crypto.enabled", "true")
    .set("spark.network.crypto.saslFallback", "false")

  /** Connections as executors make them, encrypted. */
  private def shakeHands(context: SparkContext): Unit = {
    val conf = context.conf
    for (_ <- 1 to Hands) {
      val own = new SecurityManager(conf)
      val client = RpcEnv.create("warm-up", "127.0.0.1", "127.0.0.1", 0, conf, own, 0, clientMode = true)
      try client.setupEndpointRef(context.env.rpcEnv.address, HeartbeatReceiver.ENDPOINT_NAME)
      finally client.shutdown()
    }
  }

  private def table(session: SparkSession): DataFrame = session.range(0, 4000, 1, 2)
    .selectExpr("id % 7 as k", "id as v", "cast(id as double) as d", "concat('n', id % 11) as s")

  private def queries(session: SparkSession, rows: DataFrame, n: Int): Unit = {
    rows.createOrReplaceTempView("t")
    try {
      Seq(
        s"select k, s, sum(v + $n), avg(d), max(s), count(*) from t where v > $n group by k, s order by k, s",
        s"select a.s, count(distinct b.v) c, sum(a.d * $n) from t a join t b on a.v = b.v + $n group by a.s",
        s"select *, row_number() over (partition by k order by v + $n) n from t limit 5",
        s"select w, count(*) c from (select explode(split(concat(s, '-', v % $n), '-')) w from t) group by w",
        s"select case when v % $n = 0 then 'a' when s like 'n1%' then upper(s) else substr(s, 1, 2) end x, " +
          s"date_add(date'2020-01-01', cast(v % 100 as int)) y, round(d / $n, 2) from t order by y desc limit 20",
        s"select k, avg(v) from t where s in (select s from t where v % 5 < $n) group by rollup(k) " +
          s"union all select k, $n from t where d is not null",
        s"select l.k, r.c from t l left join (select k + $n k, min(d) c from t group by k) r on l.k = r.k limit 9"
      ).foreach(session.sql(_).collect())
    } finally session.catalog.dropTempView("t")
  }

  private def pairs(context: SparkContext): Unit = {
    val shared = context.broadcast(7)
    val counts = context.parallelize(1 to 1000, 4).map(n => (n % shared.value, 1)).reduceByKey(_ + _, 2)
    assert(counts.collect().map(_._2).sum == 1000)
    shared.destroy()
  }
}
