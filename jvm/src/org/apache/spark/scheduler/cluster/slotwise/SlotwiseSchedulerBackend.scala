package org.apache.spark.scheduler.cluster.slotwise

import java.security.MessageDigest
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{ConcurrentHashMap, RejectedExecutionException, ScheduledExecutorService, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import scala.collection.mutable
import scala.concurrent.Future
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.SparkContext
import org.apache.spark.internal.config._
import org.apache.spark.resource.{ResourceProfile, TaskResourceProfile}
import org.apache.spark.rpc.{RpcAddress, RpcCallContext, RpcEndpointAddress}
import org.apache.spark.scheduler._
import org.apache.spark.scheduler.cluster.{CoarseGrainedSchedulerBackend, SchedulerBackendUtils}
import org.apache.spark.scheduler.cluster.CoarseGrainedClusterMessages.RegisterExecutor
import org.apache.spark.util.{ThreadUtils, Utils}

/**
 * Tells the worker what the application wants (totals by resource profile, executors given back) and lets in the
 * executors that the JobMaster has launched, and no others.
 *
 * The base class creates the endpoint in its constructor, before the fields of this class are set. That is safe because
 * no executor knows the driver's address before `start()`.
 */
private[slotwise] class SlotwiseSchedulerBackend(
    scheduler: SlotwiseTaskScheduler,
    sc: SparkContext,
    address: BridgeAddress)
  extends CoarseGrainedSchedulerBackend(scheduler, sc.env.rpcEnv) {

  import SlotwiseSchedulerBackend._

  private val appId = s"slotwise-${address.jobId}-${address.attempt}-${Applications.incrementAndGet()}"
  private val dynamic = Utils.isDynamicAllocationEnabled(conf)
  private val initialExecutors = SchedulerBackendUtils.getInitialTargetExecutorNumber(conf)

  @volatile private var totals = Map.empty[ResourceProfile, Int]
  @volatile private var stopping = false
  private val kills = ConcurrentHashMap.newKeySet[String]()

  // What the last directives said. Written by the link's reader under `directivesLock`.
  private val directivesLock = new Object
  @volatile private var directivesSeen = 0L
  @volatile private var launched = Map.empty[String, String]
  private val handledLosses = mutable.HashSet.empty[String]
  private val decommissioned = ConcurrentHashMap.newKeySet[String]()

  private val link = new BridgeLink(address, appId, () => currentReport(), applyDirectives)
  private val progress = new ProgressListener(link, stageSubmitted)
  private lazy val timer: ScheduledExecutorService =
    ThreadUtils.newDaemonSingleThreadScheduledExecutor("slotwise-timer")

  override def applicationId(): String = appId

  override def applicationAttemptId(): Option[String] = Some(address.attempt)

  override def sufficientResourcesRegistered(): Boolean =
    totalRegisteredExecutors.get() >= initialExecutors * minRegisteredRatio

  override def start(): Unit = {
    super.start()
    sc.listenerBus.addToManagementQueue(progress)
    if (!dynamic) request(ResourceProfile.DEFAULT_RESOURCE_PROFILE_ID)
    link.start()
  }

  override def stop(): Unit = {
    stopping = true
    timer.shutdownNow()
    // First the word that this is the end, so that executors which now stop are not taken for lost ones.
    link.close(LastReportTimeoutMs)
    super.stop()
  }

  /** The executors that can be given tasks. */
  def activeExecutors: Iterable[String] = getExecutorIds().filter(isExecutorActive)

  /** A pipeline's program has said something new. */
  def programSpoke(): Unit = link.changed()

  /** What has run until now was not the program's. */
  def forgetProgress(): Unit = progress.forget()

  /** Ends all jobs that have a stage of this region. */
  def cancelRegion(region: String): Unit =
    progress.stagesOf(region).foreach(id => sc.cancelStage(id, s"region $region was cancelled"))

  // ---- what the application wants ----

  override protected def doRequestTotalExecutors(wanted: Map[ResourceProfile, Int]): Future[Boolean] = {
    totals = wanted
    link.changed()
    Future.successful(true)
  }

  override protected def doKillExecutors(executorIds: Seq[String]): Future[Boolean] = {
    kills.addAll(executorIds.asJava)
    link.changed()
    Future.successful(true)
  }

  /** Without dynamic allocation nobody in Spark asks for executors of a profile: its first stage does. */
  private def stageSubmitted(stage: StageInfo): Unit = {
    val id = stage.resourceProfileId
    if (!dynamic && id != ResourceProfile.DEFAULT_RESOURCE_PROFILE_ID && !totals.keys.exists(_.id == id)) {
      sc.resourceProfileManager.resourceProfileFromId(id) match {
        case _: TaskResourceProfile => () // runs on the default profile's executors
        case _ => request(id)
      }
    }
  }

  private def request(profileId: Int): Unit = {
    val wanted = totals.map { case (profile, count) => profile.id -> count } + (profileId -> initialExecutors)
    requestTotalExecutors(wanted, wanted.map { case (id, _) => id -> 0 }, wanted.map { case (id, _) => id -> Map.empty })
  }

  // ---- the report ----

  private def currentReport(): ObjectNode = {
    val present = getExecutorIds().toSet
    kills.removeIf(id => !present.contains(id) && !launched.contains(id))
    val node = BridgeLink.Json.createObjectNode()
    node.put("app_id", appId)
    node.put("driver_url", RpcEndpointAddress(
      conf.get(DRIVER_HOST_ADDRESS), conf.get(DRIVER_PORT), CoarseGrainedSchedulerBackend.ENDPOINT_NAME).toString)
    node.put("ui_url", sc.uiWebUrl.getOrElse(""))
    ExecutorSizes.describeLaunch(sc, node.putObject("launch"))
    val wanted = node.putArray("totals")
    totals.toSeq.sortBy(_._1.id).foreach { case (profile, count) =>
      val total = wanted.addObject().put("profile_id", profile.id).put("count", count)
      ExecutorSizes.describe(profile, conf, total.putObject("size"))
    }
    addAll(node, "kills", kills.asScala)
    addAll(node, "registered", present)
    val regions = node.putObject("regions")
    scheduler.regions.assignment.toSeq.sorted.foreach { case (id, region) => regions.put(id, region) }
    PipelineControl.describe(node)
    WarmApplication.describe(node)
    node.put("directives_seen", directivesSeen)
    node.put("ended", stopping)
    progress.describe(node)
    node
  }

  private def addAll(node: ObjectNode, name: String, ids: Iterable[String]): Unit = {
    val array = node.putArray(name)
    ids.toSeq.sortBy(id => (id.length, id)).foreach(id => array.add(id))
  }

  // ---- the directives ----

  private def applyDirectives(node: JsonNode): Unit = directivesLock.synchronized {
    val version = node.path("version").asLong()
    if (node.path("app_id").asText() == appId && version > directivesSeen) {
      launched = texts(node.path("launched"))
      scheduler.regions.assign(texts(node.path("regions")))
      node.path("lost").elements().asScala.foreach { lost =>
        val id = lost.path("executor_id").asText()
        if (handledLosses.add(id)) {
          removeExecutor(id, ExecutorExited(
            lost.path("exit_code").asInt(),
            exitCausedByApp = lost.path("caused_by_program").asBoolean(),
            lost.path("reason").asText()))
        }
      }
      node.path("decommission").elements().asScala.map(_.asText()).foreach(decommission)
      if (node.path("pipeline").isObject) PipelineControl.tell(node.path("pipeline").toString)
      if (node.path("program").isObject) WarmApplication.tell(node.path("program"))
      directivesSeen = version
      driverEndpoint.send(LookAtWaiting)
      // An executor may have come to a region whose tasks wait.
      reviveOffers()
      link.changed()
    }
  }

  private def texts(node: JsonNode): Map[String, String] =
    node.properties().asScala.map(entry => entry.getKey -> entry.getValue.asText()).toMap

  /** No more tasks for this executor; it moves its blocks to the others and ends by itself. */
  private def decommission(id: String): Unit =
    if (decommissioned.add(id)) later(0) { handOver(id, System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PeerTimeoutMs)) }

  /** An executor that joins stores blocks a moment later; one that leaves before that finds nobody to give its own to. */
  private def handOver(id: String, deadlineNs: Long): Unit = {
    def others(ids: Iterable[String]) = ids.exists(other => !decommissioned.contains(other))
    val stores = sc.env.blockManager.master.getMemoryStatus.keys.filterNot(_.isDriver).map(_.executorId)
    if (others(activeExecutors) && !others(stores) && System.nanoTime() - deadlineNs < 0) {
      later(PeerPollMs) { handOver(id, deadlineNs) }
    } else {
      decommissionExecutor(id, ExecutorDecommissionInfo("it is not needed, or its worker goes"), adjustTargetNumExecutors = false)
    }
  }

  // ---- who may register, and what a broken connection means ----

  override protected def createDriverEndpoint(): DriverEndpoint = new SlotwiseDriverEndpoint

  private class Waiting(val context: RpcCallContext, val message: RegisterExecutor, val deadlineNs: Long)

  private class SlotwiseDriverEndpoint extends DriverEndpoint {

    /** Executors that came before the directives which name them. Touched by the endpoint's own thread only. */
    private var waiting = Vector.empty[Waiting]

    override def receive: PartialFunction[Any, Unit] = lookAtWaiting.orElse(super.receive)

    override def receiveAndReply(context: RpcCallContext): PartialFunction[Any, Unit] = {
      val guarded: PartialFunction[Any, Unit] = {
        case message: RegisterExecutor =>
          val deadlineNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(AdmissionTimeoutMs)
          decide(new Waiting(context, message, deadlineNs))
      }
      guarded.orElse(super.receiveAndReply(context))
    }

    private val lookAtWaiting: PartialFunction[Any, Unit] = {
      case LookAtWaiting =>
        val now = waiting
        waiting = Vector.empty
        now.foreach(decide)
    }

    private def decide(candidate: Waiting): Unit = {
      val id = candidate.message.executorId
      launched.get(id) match {
        case Some(ticket) if same(ticket, candidate.message.attributes.getOrElse(TicketAttribute, "")) =>
          register(candidate)
        case Some(_) =>
          refuse(candidate, s"executor $id has a wrong ticket")
        case None if System.nanoTime() - candidate.deadlineNs >= 0 =>
          refuse(candidate, s"executor $id was not launched for $appId")
        case None =>
          waiting :+= candidate
          later(AdmissionTimeoutMs) { driverEndpoint.send(LookAtWaiting) }
      }
    }

    private def register(candidate: Waiting): Unit = {
      super.receiveAndReply(candidate.context)(candidate.message)
      link.changed()
    }

    private def refuse(candidate: Waiting, reason: String): Unit = {
      logWarning(s"refused to register: $reason")
      candidate.context.sendFailure(new IllegalStateException(reason))
    }

    /**
     * A connection broke. The worker knows how the process ended and says so in a moment; until then the executor gets no
     * tasks. Without word from the worker Spark's own verdict stands, which blames the tasks that ran there.
     */
    override def onDisconnected(remote: RpcAddress): Unit = addressToExecutorId.get(remote) match {
      case Some(id) if !stopping && !executorsPendingDecommission.contains(id) =>
        disableExecutor(id)
        later(VerdictTimeoutMs) {
          removeExecutor(id, ExecutorProcessLost("the connection to the executor broke and its worker is silent"))
        }
      case _ =>
        super.onDisconnected(remote)
    }
  }

  private def later(delayMs: Long)(body: => Unit): Unit =
    try {
      timer.schedule((() => body): Runnable, delayMs, TimeUnit.MILLISECONDS)
    } catch {
      case _: RejectedExecutionException => () // the application is stopping
    }
}

private[slotwise] object SlotwiseSchedulerBackend {
  /** Made by CoarseGrainedExecutorBackend from the variable SPARK_EXECUTOR_ATTRIBUTE_SLOTWISE_TICKET. */
  val TicketAttribute = "SLOTWISE_TICKET"

  /** To the endpoint itself: look again at the executors that wait for admission. */
  case object LookAtWaiting

  private val AdmissionTimeoutMs = 10000L
  private val VerdictTimeoutMs = 3000L
  private val PeerTimeoutMs = 10000L
  private val PeerPollMs = 200L
  private val LastReportTimeoutMs = 2000L

  private val Applications = new AtomicInteger

  private def same(ticket: String, offered: String): Boolean =
    MessageDigest.isEqual(ticket.getBytes(UTF_8), offered.getBytes(UTF_8))
}
