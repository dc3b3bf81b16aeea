package org.apache.spark.scheduler.cluster.slotwise

import java.util.concurrent.ConcurrentHashMap

/**
 * The classes of `parent`, and the names under which it has none: it is asked once for each of these.
 *
 * Janino, which compiles what Spark generates, and Py4J ask of every part of a name whether that is a class (`org`,
 * `org.apache`, `java.lang.org`): always the same few dozen, a hundred times in a query, and each time the application's
 * own loader looks through all of Spark's jars. These do not change while a JVM lives. A job's own jars are on another
 * loader's path, below this one, unless they are there from the start.
 */
private[slotwise] class AbsentClasses private (parent: ClassLoader) extends ClassLoader(parent) {
  // For the instances after the first: the JVM locks a loader that has not said this when it was made.
  ClassLoader.registerAsParallelCapable()

  private val absent = ConcurrentHashMap.newKeySet[String]()

  override protected def loadClass(name: String, resolve: Boolean): Class[_] = {
    if (absent.contains(name)) throw new ClassNotFoundException(name)
    try parent.loadClass(name)
    catch {
      case e: ClassNotFoundException =>
        if (absent.size < AbsentClasses.Most) absent.add(name)
        throw e
    }
  }
}

private[slotwise] object AbsentClasses {
  private val Most = 10000

  // It is of no use but to have said how the others are to be made.
  new AbsentClasses(null)

  /** Over this `parent`. */
  def of(parent: ClassLoader): ClassLoader = new AbsentClasses(parent)

  /** From now on, for this thread and those that it starts. */
  def remember(): Unit = {
    val thread = Thread.currentThread()
    thread.getContextClassLoader match {
      case null | _: AbsentClasses =>
      case loader => thread.setContextClassLoader(of(loader))
    }
  }

  /** How many names are remembered for this thread. */
  def remembered(): Int =
    Iterator.iterate(Thread.currentThread().getContextClassLoader)(_.getParent).takeWhile(_ != null)
      .collect { case loader: AbsentClasses => loader.absent.size }.sum
}
