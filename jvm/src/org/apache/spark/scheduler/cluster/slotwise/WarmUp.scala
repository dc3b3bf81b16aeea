package org.apache.spark.scheduler.cluster.slotwise

import java.nio.file.Path
import java.util.{Map => JavaMap}

import scala.util.control.NonFatal

import org.apache.spark.{HeartbeatReceiver, SecurityManager, SparkConf, SparkContext}
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.RpcEnv
import org.apache.spark.sql.{DataFrame, SparkSession}
import org.apache.spark.util.Utils

/**
 * Small jobs, for the sake of the classes that they have the JVM load and compile. What Spark generates for a query it
 * keeps, so each query is another one each time: it is the generating that is to be quick.
 */
private[slotwise] object WarmUp extends Logging {

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
    ask(session, session.read.parquet(path), queries(round))
    pairs(session.sparkContext)
  }

  /** The same kind of work in a context that is there, on rows that its executors can read wherever they are. */
  def run(session: SparkSession, files: JavaMap[String, String], number: Int): Unit = {
    val rows = session.read.options(files).parquet()
    ask(session, if (number % 2 == 0) table(session) else rows, queries(number))
    ask(session, rows, rarer(number))
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

  private def ask(session: SparkSession, rows: DataFrame, queries: Seq[String]): Unit = {
    rows.createOrReplaceTempView("t")
    try {
      // A job's settings may forbid one of them; there is less prepared then.
      for (query <- queries) try session.sql(query).collect() catch {
        case NonFatal(e) => logWarning(s"cannot practise \"$query\"", e)
      }
    } finally session.catalog.dropTempView("t")
  }

  /** What nearly every program does. */
  private def queries(n: Int): Seq[String] = Seq(
    s"select k, s, sum(v + $n), avg(d), max(s), count(*) from t where v > $n group by k, s order by k, s",
    s"select a.s, count(distinct b.v) c, sum(a.d * $n) from t a join t b on a.v = b.v + $n group by a.s",
    s"select *, row_number() over (partition by k order by v + $n) n from t limit 5",
    s"select w, count(*) c from (select explode(split(concat(s, '-', v % $n), '-')) w from t) group by w",
    s"select case when v % $n = 0 then 'a' when s like 'n1%' then upper(s) else substr(s, 1, 2) end x, " +
      s"date_add(date'2020-01-01', cast(v % 100 as int)) y, round(d / $n, 2) from t order by y desc limit 20",
    s"select k, avg(v) from t where s in (select s from t where v % 5 < $n) group by rollup(k) " +
      s"union all select k, $n from t where d is not null",
    s"select l.k, r.c from t l left join (select k + $n k, min(d) c from t group by k) r on l.k = r.k limit 9"
  )

  /** The other operators, and kinds of functions. */
  private def rarer(n: Int): Seq[String] = Seq(
    // Aggregates that keep objects; the second has so many groups that it sorts them.
    s"select k, sort_array(collect_set(s)), approx_percentile(d, 0.5), count_if(v > $n) from t group by k",
    s"select max(size(l)) from (select v % 300 g, collect_list(d + $n) l from t group by v % 300)",
    s"select s, stddev(d + $n), corr(d, v), first(k) from t group by s having count(*) > 2",
    // One that keeps numbers, and for which no code of its own is made.
    s"select k, s, approx_count_distinct(v % $n), sum(d) from t group by k, s having approx_count_distinct(v + $n) > 1",
    s"select k, s, sum(d + $n) from t group by cube(k, s)",
    s"select sum(v) over (partition by s order by v rows between 2 preceding and current row) + $n, " +
      "lag(v) over (partition by s order by v) from t limit 5",
    s"select year(x), weekday(x), count(*) from (select timestamp'2021-02-03 04:05:06' + " +
      s"make_interval(0, 0, 0, $n, cast(k as int)) x from t) group by all",
    s"select date_format(make_date(2020, cast(1 + k as int), $n % 28 + 1), 'yyyy-MM') m, " +
      "datediff(current_date(), to_date('2020-01-' || (10 + k))) from t group by all",
    s"select regexp_extract(s, 'n([0-9]+)', 1), trim(lpad(s, 5, '*')), instr(s, '$n') from t where s rlike '[0-4]' limit 7",
    s"select to_json(named_struct('a', k, 'b', s)), get_json_object(s || '$n', '$$.a') from t limit 7",
    s"select aggregate(transform(array(k, v), x -> x + $n), 0L, (a, x) -> a + x), map(s, k)['n1'] from t limit 7",
    s"select cast(d as decimal(20, 3)) * 1.$n x, abs(v) + hash(s) % $n, greatest(k, v) from t order by x limit 7",
    s"select sum(x) from (select cast(d as decimal(18, 2)) + $n x from t)",
    s"(select k, s from t where v > $n) except (select k, s from t where v < $n) intersect select k, s from t",
    s"select /*+ merge(b) */ count(*) from t a full join t b on a.v = b.v + $n and a.s = b.s",
    s"select count(*) from t a where exists (select 1 from t b where b.v = a.v + $n) and a.k not in (select $n)",
    s"with c as (select k, d / $n r from t where d > (select avg(d) from t)) " +
      "select k, ntile(3) over (partition by k order by r) n from c"
  )

  private def pairs(context: SparkContext): Unit = {
    val shared = context.broadcast(7)
    val counts = context.parallelize(1 to 1000, 4).map(n => (n % shared.value, 1)).reduceByKey(_ + _, 2)
    assert(counts.collect().map(_._2).sum == 1000)
    shared.destroy()
  }
}
