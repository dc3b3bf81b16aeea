package org.apache.spark.scheduler.cluster.slotwise

import java.io.IOException

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.hadoop.fs.permission.FsAction
import org.apache.hadoop.mapreduce.{JobContext, OutputCommitter, TaskAttemptContext}
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat
import org.apache.hadoop.security.AccessControlException

import org.apache.spark.internal.io.FileCommitProtocol.TaskCommitMessage
import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.TableIdentifier
import org.apache.spark.sql.catalyst.analysis.ResolvedTable
import org.apache.spark.sql.catalyst.catalog.CatalogTable
import org.apache.spark.sql.catalyst.expressions.Literal
import org.apache.spark.sql.catalyst.parser.CatalystSqlParser
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.connector.catalog.{Table, TableCapability}
import org.apache.spark.sql.execution.command.{DDLUtils, TruncateTableCommand}
import org.apache.spark.sql.execution.datasources.{DataSource, FileFormat, SQLHadoopMapReduceCommitProtocol}
import org.apache.spark.sql.execution.datasources.v2.{DataSourceV2Relation, FileDataSourceV2}

/**
 * Materialized views that are replaced as a whole.
 *
 * Spark's pipelines empty the table of a view and append to it, so that others can see it empty, or half of it. In a
 * session whose configuration names the view ([[Outputs.Property]]) the emptying is left out; then what is appended
 * takes the place of what was there: tables of catalogs that can overwrite do so in one commit, and a folder of files is
 * written beside the old one and renamed to its name.
 */
private[slotwise] object Outputs {
  /** The session configuration with the qualified name of the view that is made. */
  val Property = "spark.slotwise.replace"

  // Those where a folder gets another name in one step.
  private val RenamingSchemes = Set("file", "hdfs", "viewfs", "abfs", "abfss", "ofs")
  private val Mark = "slotwise"

  /** The name parts of the view that is made in `session`, if one is. */
  def replaced(session: SparkSession): Option[Seq[String]] =
    Option(session.conf.get(Property, null)).map(CatalystSqlParser.parseMultipartIdentifier)

  /** The table of files that is made in `session`, if it is one that can be replaced by another folder. */
  def replacedFiles(session: SparkSession): Option[CatalogTable] = replaced(session) match {
    case Some(Seq("spark_catalog", database, name)) =>
      val identifier = TableIdentifier(name, Some(database))
      val catalog = session.sessionState.catalog
      if (catalog.tableExists(identifier)) Some(catalog.getTableMetadata(identifier)).filter(canRename(session, _)) else None
    case _ => None
  }

  private def canRename(session: SparkSession, table: CatalogTable): Boolean =
    DDLUtils.isDatasourceTable(table) && table.storage.locationUri.isDefined && {
      val path = new Path(table.location)
      val files = path.getFileSystem(session.sessionState.newHadoopConf())
      RenamingSchemes.contains(files.getScheme) && isOfFiles(session, table.provider.get) &&
        mayWriteBeside(files, path) && hasAllBelow(session, table)
    }

  private def mayWriteBeside(files: FileSystem, path: Path): Boolean =
    try {
      files.access(path.getParent, FsAction.WRITE)
      true
    } catch { case _: AccessControlException => false }

  /** Whether no partition of the table lies elsewhere. */
  private def hasAllBelow(session: SparkSession, table: CatalogTable): Boolean =
    // Hive says of its tables without partitions, too, that it keeps track of them.
    table.partitionColumnNames.isEmpty || !table.tracksPartitionsInCatalog ||
      session.sessionState.catalog.listPartitions(table.identifier).forall {
        partition => partition.location.toString.startsWith(table.location.toString)
      }

  private def isOfFiles(session: SparkSession, provider: String): Boolean = {
    val source = DataSource.lookupDataSource(provider, session.sessionState.conf)
    classOf[FileFormat].isAssignableFrom(source) || classOf[FileDataSourceV2].isAssignableFrom(source)
  }

  /** Where what replaces `target` is written meanwhile. Spark passes over names that begin like this one. */
  def staging(target: Path, id: String): Path = beside(target, s"new-$id")

  private def beside(target: Path, what: String): Path = new Path(target.getParent, s".${target.getName}.$Mark-$what")

  private def old(target: Path): Path = beside(target, "old")

  /** Completes, or takes back, what a driver that died has left of a replacement of `target`. */
  def recover(target: Path, conf: Configuration): Unit = {
    val files = target.getFileSystem(conf)
    if (files.exists(old(target))) {
      if (files.exists(target)) files.delete(old(target), true) else rename(files, old(target), target)
    }
    val parent = target.getParent
    if (files.exists(parent)) {
      val unfinished = staging(target, "").getName
      files.listStatus(parent).map(_.getPath).filter(_.getName.startsWith(unfinished)).foreach(files.delete(_, true))
    }
  }

  /** Puts the folder `staging` in the place of `target`. */
  def replace(staging: Path, target: Path, conf: Configuration): Unit = {
    val files = target.getFileSystem(conf)
    val exists = files.exists(target)
    if (exists) {
      val before = files.getFileStatus(target)
      files.setPermission(staging, before.getPermission)
      // Only who is in that group may give it away.
      if (files.getFileStatus(staging).getGroup != before.getGroup) {
        try files.setOwner(staging, null, before.getGroup) catch { case _: IOException => }
      }
      rename(files, target, old(target))
    }
    try rename(files, staging, target) catch {
      case NonFatal(error) =>
        if (exists) rename(files, old(target), target)
        throw error
    }
    if (exists) files.delete(old(target), true)
  }

  private def rename(files: FileSystem, from: Path, to: Path): Unit =
    // Into a folder that is there it would be moved.
    if (files.exists(to) || !files.rename(from, to)) throw new IOException(s"cannot rename $from to $to")
}

/** For `spark.sql.extensions`. Does nothing in sessions that make no materialized view. */
class OutputExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectPostHocResolutionRule { case session: SparkSession => new ReplaceOutput(session) }
}

private[slotwise] class ReplaceOutput(session: SparkSession) extends Rule[LogicalPlan] {

  override def apply(plan: LogicalPlan): LogicalPlan = plan match {
    case TruncateTableCommand(table, None)
        if Outputs.replacedFiles(session).exists(_.identifier.unquotedString == qualified(table)) =>
      LocalRelation()
    case TruncateTable(ResolvedTable(catalog, identifier, table, _))
        if isReplaced(catalog.name +: identifier.namespace.toSeq :+ identifier.name) && canOverwrite(table) =>
      LocalRelation()
    case append: AppendData if append.resolved =>
      append.table match {
        case relation: DataSourceV2Relation if isReplaced(namesOf(relation)) && canOverwrite(relation.table) =>
          // Its query has the table's columns, in their order, by now.
          OverwriteByExpression.byPosition(relation, append.query, Literal.TrueLiteral, append.writeOptions)
        case _ => append
      }
    case other => other
  }

  private def qualified(table: TableIdentifier): String =
    session.sessionState.catalog.qualifyIdentifier(table).unquotedString

  private def isReplaced(names: Seq[String]): Boolean = Outputs.replaced(session).contains(names)

  private def namesOf(relation: DataSourceV2Relation): Seq[String] =
    relation.catalog.map(_.name).toSeq ++ relation.identifier.toSeq.flatMap(name => name.namespace.toSeq :+ name.name)

  private def canOverwrite(table: Table): Boolean = {
    val can = table.capabilities
    can.contains(TableCapability.BATCH_WRITE) &&
      (can.contains(TableCapability.TRUNCATE) || can.contains(TableCapability.OVERWRITE_BY_FILTER))
  }
}

/**
 * For `spark.sql.sources.commitProtocolClass`, in sessions that make a materialized view: writes the table's files into a
 * new folder, which replaces the table's at the end.
 *
 * @param path what Spark means to write into
 */
class ReplacingCommitProtocol(jobId: String, path: String, dynamicPartitionOverwrite: Boolean, target: Option[String])
    extends SQLHadoopMapReduceCommitProtocol(
      jobId,
      target.map(to => Outputs.staging(new Path(to), jobId).toString).getOrElse(path),
      target.isEmpty && dynamicPartitionOverwrite) {

  /** What Spark calls. */
  def this(jobId: String, path: String, dynamicPartitionOverwrite: Boolean) =
    this(jobId, path, dynamicPartitionOverwrite, ReplacingCommitProtocol.target(path))

  private def staging(target: String): Path = Outputs.staging(new Path(target), jobId)

  /** A file that goes when somebody else takes this folder for something left behind. */
  private def mark(target: String): Path = new Path(staging(target), "_temporary/slotwise")

  override protected def setupCommitter(context: TaskAttemptContext): OutputCommitter = {
    target.foreach(to => context.getConfiguration.set(FileOutputFormat.OUTDIR, staging(to).toString))
    super.setupCommitter(context)
  }

  override def setupJob(context: JobContext): Unit = {
    target.foreach(to => Outputs.recover(new Path(to), context.getConfiguration))
    super.setupJob(context)
    target.foreach(to => mark(to).getFileSystem(context.getConfiguration).create(mark(to), true).close())
  }

  override def commitJob(context: JobContext, messages: Seq[TaskCommitMessage]): Unit = {
    target.filterNot(to => mark(to).getFileSystem(context.getConfiguration).exists(mark(to))).foreach { to =>
      throw new IOException(s"$to is being written by another job too, which has removed what this one wrote")
    }
    super.commitJob(context, messages)
    target.foreach(to => Outputs.replace(staging(to), new Path(to), context.getConfiguration))
  }

  override def abortJob(context: JobContext): Unit = {
    super.abortJob(context)
    target.foreach { to =>
      staging(to).getFileSystem(context.getConfiguration).delete(staging(to), true)
    }
  }
}

private object ReplacingCommitProtocol {
  /** `path` if it is that of the table of files that the current session makes. */
  def target(path: String): Option[String] = {
    val session = org.apache.spark.sql.classic.SparkSession.active
    val files = new Path(path).getFileSystem(session.sessionState.newHadoopConf())
    Outputs.replacedFiles(session)
      .filter(table => files.makeQualified(new Path(table.location)) == files.makeQualified(new Path(path)))
      .map(_ => path)
  }
}
