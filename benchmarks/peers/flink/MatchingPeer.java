package org.apache.flink.runtime.resourcemanager.slotmanager;

import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.resources.CPUResource;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.runtime.clusterframework.types.AllocationID;
import org.apache.flink.runtime.clusterframework.types.ResourceID;
import org.apache.flink.runtime.clusterframework.types.ResourceProfile;
import org.apache.flink.runtime.resourcemanager.registration.TaskExecutorConnection;
import org.apache.flink.runtime.slots.ResourceRequirement;
import org.apache.flink.runtime.taskexecutor.TaskExecutorGateway;

/**
 * Times Flink's allocation strategy. Arguments: rounds, the worker's size, the default slot's size, then for each
 * case "workers,jobs,each,sizes,mode,used", where sizes are milli-cores:MiB joined by "+", or "unknown", mode is one of
 * Flink's load balance modes, and used is a file with what is in use on each worker, milli-cores:MiB a line, or nothing
 * for empty workers. Every job asks for `each` slots of every size. Lives in Flink's package because the strategy is
 * visible there alone. Prints, for each case, the fewest milliseconds of the second half of the rounds, slots given,
 * workers used, workers asked for.
 */
public final class MatchingPeer {
    private MatchingPeer() {}

    private static ResourceProfile size(String text) {
        String[] parts = text.split(":");
        return ResourceProfile.newBuilder()
                .setCpuCores(Integer.parseInt(parts[0]) / 1000.0)
                .setTaskHeapMemoryMB(Integer.parseInt(parts[1]))
                .setTaskOffHeapMemoryMB(0)
                .setManagedMemoryMB(0)
                .setNetworkMemoryMB(0)
                .build();
    }

    public static void main(String[] arguments) throws IOException {
        int rounds = Integer.parseInt(arguments[0]);
        ResourceProfile worker = size(arguments[1]);
        ResourceProfile slot = size(arguments[2]);
        for (int i = 3; i < arguments.length; i++) {
            String[] given = arguments[i].split(",", -1);
            List<String> used = given[5].isEmpty() ? List.of() : Files.readAllLines(Path.of(given[5]));
            var mode = TaskManagerOptions.TaskManagerLoadBalanceMode.valueOf(given[4]);
            measure(rounds, worker, slot, Integer.parseInt(given[0]), wanted(given), mode, used);
        }
    }

    private static Map<JobID, Collection<ResourceRequirement>> wanted(String[] given) {
        int each = Integer.parseInt(given[2]);
        Map<JobID, Collection<ResourceRequirement>> jobs = new LinkedHashMap<>();
        for (int job = 0; job < Integer.parseInt(given[1]); job++) {
            List<ResourceRequirement> requirements = new ArrayList<>();
            for (String text : given[3].split("\\+")) {
                ResourceProfile profile = text.equals("unknown") ? ResourceProfile.UNKNOWN : size(text);
                requirements.add(ResourceRequirement.create(profile, each));
            }
            jobs.put(new JobID(), requirements);
        }
        return jobs;
    }

    private static void measure(
            int rounds,
            ResourceProfile worker,
            ResourceProfile slot,
            int workers,
            Map<JobID, Collection<ResourceRequirement>> wanted,
            TaskManagerOptions.TaskManagerLoadBalanceMode mode,
            List<String> used) {
        FineGrainedTaskManagerTracker tracker = new FineGrainedTaskManagerTracker();
        TaskExecutorGateway gateway =
                (TaskExecutorGateway)
                        Proxy.newProxyInstance(
                                MatchingPeer.class.getClassLoader(),
                                new Class<?>[] {TaskExecutorGateway.class},
                                (proxy, method, values) -> null);
        for (int i = 0; i < workers; i++) {
            TaskExecutorConnection connection = new TaskExecutorConnection(new ResourceID("worker-" + i), gateway);
            tracker.addTaskManager(connection, worker, slot);
            if (!used.isEmpty() && !used.get(i).equals("0:0")) {
                tracker.notifySlotStatus(
                        new AllocationID(),
                        new JobID(),
                        connection.getInstanceID(),
                        size(used.get(i)),
                        SlotState.ALLOCATED);
            }
        }
        DefaultResourceAllocationStrategy strategy =
                new DefaultResourceAllocationStrategy(
                        worker,
                        16,
                        mode,
                        Duration.ofSeconds(30),
                        0,
                        new CPUResource(0.0),
                        MemorySize.ZERO);
        List<Double> times = new ArrayList<>();
        ResourceAllocationResult result = null;
        for (int round = 0; round < rounds; round++) {
            long began = System.nanoTime();
            result = strategy.tryFulfillRequirements(wanted, tracker, blocked -> false);
            double elapsed = (System.nanoTime() - began) / 1e6;
            if (round >= rounds / 2) {
                times.add(elapsed);
            }
        }
        times.sort(null);
        java.util.Set<Object> taken = new java.util.HashSet<>();
        long given = 0;
        for (var job : result.getAllocationsOnRegisteredResources().values()) {
            for (var entry : job.entrySet()) {
                taken.add(entry.getKey());
                given += entry.getValue().getTotalResourceCount();
            }
        }
        System.out.printf(
                java.util.Locale.ROOT,
                "measured %.4f %d %d %d%n",
                times.get(0),
                given,
                taken.size(),
                result.getPendingTaskManagersToAllocate().size());
    }
}
