import java.io.FileReader;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;

// Makes each call of Java's admin client on topic messages.persisted, with the properties in the file that is
// the argument. It prints a line for each call: its name and ok, or its name and the class of the error.
public class AdminCalls {
  interface Call {
    Object make() throws Exception;
  }

  static void call(String name, Call c) {
    String outcome = "ok";
    try {
      c.make();
    } catch (ExecutionException e) {
      outcome = e.getCause().getClass().getSimpleName();
    } catch (Throwable e) {
      outcome = e.getClass().getSimpleName();
    }
    System.out.println(name + " " + outcome);
  }

  public static void main(String[] args) throws Exception {
    Properties p = new Properties();
    try (var r = new FileReader(args[0])) {
      p.load(r);
    }
    String topic = "messages.persisted";
    var part = new TopicPartition(topic, 0);
    var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
    try (Admin a = Admin.create(p)) {
      call("describeCluster", () -> a.describeCluster().nodes().get());
      call("listTopics", () -> a.listTopics().names().get());
      call("describeTopics", () -> a.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().get(63));
      call("describeConfigs", () -> a.describeConfigs(List.of(resource)).all().get());
      call("listOffsets", () -> a.listOffsets(Map.of(part, OffsetSpec.latest())).all().get());
      call("listGroups", () -> a.listConsumerGroups().all().get());
      call("describeGroups", () -> a.describeConsumerGroups(List.of("fanout-workers")).all().get());
      call("listGroupOffsets", () -> a.listConsumerGroupOffsets("fanout-workers").partitionsToOffsetAndMetadata().get());
      call("describeLogDirs", () -> a.describeLogDirs(List.of(0)).allDescriptions().get());
      call("describeAcls", () -> a.describeAcls(AclBindingFilter.ANY).values().get());
      call("listTransactions", () -> a.listTransactions().all().get());
      call("describeProducers", () -> a.describeProducers(List.of(part)).all().get());
      call("describeClientQuotas", () -> a.describeClientQuotas(ClientQuotaFilter.all()).entities().get());
      call("describeUserScram", () -> a.describeUserScramCredentials().all().get());
      call("describeMetadataQuorum", () -> a.describeMetadataQuorum().quorumInfo().get());
      call("listReassignments", () -> a.listPartitionReassignments().reassignments().get());
      call("electLeaders", () -> a.electLeaders(ElectionType.PREFERRED, null).all().get());
      call("createTopics", () -> a.createTopics(List.of(new NewTopic("x", 1, (short) 1))).all().get());
      call("deleteTopics", () -> a.deleteTopics(List.of(topic)).all().get());
      call("createPartitions", () -> a.createPartitions(Map.of(topic, NewPartitions.increaseTo(65))).all().get());
      call("deleteRecords", () -> a.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(1))).all().get());
      call("alterConfigs", () -> a.incrementalAlterConfigs(Map.of(resource, List.of(
          new AlterConfigOp(new ConfigEntry("retention.ms", "1"), AlterConfigOp.OpType.SET)))).all().get());
      call("deleteGroups", () -> a.deleteConsumerGroups(List.of("fanout-workers")).all().get());
      call("fenceProducers", () -> a.fenceProducers(List.of("relay-0")).all().get());
    }
  }
}
