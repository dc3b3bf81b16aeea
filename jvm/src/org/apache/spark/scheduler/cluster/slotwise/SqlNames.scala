package org.apache.spark.scheduler.cluster.slotwise

import scala.collection.mutable

import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation
import org.apache.spark.sql.catalyst.parser.CatalystSqlParser
import org.apache.spark.sql.catalyst.plans.logical.{Filter, LogicalPlan, OneRowRelation, UnresolvedWith}

/**
 * The tables that SQL names, by Spark's own parser: what a flow of a pipeline reads is known before anything is analysed
 * (which may read files, and needs executors for it). Called by pipeline programs through the gateway.
 */
object SqlNames {

  /** The tables that the query `text` reads, as a JSON list of lists of name parts. */
  def ofQuery(text: String): String = ofPlan(CatalystSqlParser.parsePlan(text))

  /** The tables that the expression `text` reads, by its subqueries, in the same form. */
  def ofExpression(text: String): String =
    ofPlan(Filter(CatalystSqlParser.parseExpression(text), OneRowRelation()))

  /** The tables that the parsed query `plan` reads, in the same form. */
  def ofPlan(plan: LogicalPlan): String = {
    val found = mutable.LinkedHashSet.empty[Seq[String]]
    collect(plan, Set.empty, found)
    val node = BridgeLink.Json.createArrayNode()
    found.foreach { parts =>
      val list = node.addArray()
      parts.foreach(part => list.add(part))
    }
    BridgeLink.Json.writeValueAsString(node)
  }

  /** @param hidden names in lower case that stand for a WITH clause's query here, not for a table */
  private def collect(plan: LogicalPlan, hidden: Set[String], found: mutable.Set[Seq[String]]): Unit = plan match {
    case relation: UnresolvedRelation =>
      val parts = relation.multipartIdentifier
      if (parts.length > 1 || !hidden.contains(parts.head.toLowerCase)) found += parts
    case With(queries, recursive, body) =>
      // Each query sees those before it; all of them, and itself, where the clause is recursive.
      val all = hidden ++ queries.map(_._1.toLowerCase)
      val seen = queries.foldLeft(hidden) { case (names, (name, query)) =>
        collect(query, if (recursive) all else names, found)
        names + name.toLowerCase
      }
      collect(body, seen, found)
    case other =>
      other.children.foreach(collect(_, hidden, found))
      other.subqueries.foreach(collect(_, hidden, found))
  }

  private object With {
    def unapply(plan: LogicalPlan): Option[(Seq[(String, LogicalPlan)], Boolean, LogicalPlan)] = plan match {
      // Of Spark's versions some have pairs for entries and some triples, and not all have recursion.
      case clause: UnresolvedWith =>
        val recursive = clause.productElementNames.zip(clause.productIterator).contains(("allowRecursion", true))
        Some((clause.cteRelations.map(entry => (entry._1, entry._2: LogicalPlan)), recursive, clause.child))
      case _ => None
    }
  }
}
