import java.io.BufferedReader;
import java.io.File;
import java.io.FileReader;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.nodemanager.NodeManager;

/**
 * HDFS with two data nodes, and YARN with node managers, in one process. Arguments: a directory, the
 * ports of the name node, and the number of node managers.
 *
 * <p>It writes the clients' configuration into {@code conf}, then {@code ready}. Commands come as
 * lines of the pipe {@code commands}; each is answered by a line in {@code answers}.
 */
public class SmallCluster {
  private static final List<NodeManager> nodes = new ArrayList<>();
  private static MiniDFSCluster hdfs;
  private static MiniYARNCluster yarn;
  private static File directory;

  public static void main(String[] arguments) throws Exception {
    directory = new File(arguments[0]);
    int port = Integer.parseInt(arguments[1]);
    hdfs =
        new MiniDFSCluster.Builder(hdfsSettings()).nameNodePort(port).numDataNodes(2).build();
    hdfs.waitActive();
    FileSystem files = hdfs.getFileSystem();
    files.setPermission(new org.apache.hadoop.fs.Path("/"), new FsPermission((short) 01777));
    yarn = new MiniYARNCluster("yarn", 0, 1, 1);
    yarn.init(yarnSettings(hdfs.getURI().toString()));
    yarn.start();
    for (int i = 0; i < Integer.parseInt(arguments[2]); i++) {
      startNode();
    }
    writeConfiguration();
    Files.writeString(Path.of(directory.getPath(), "ready"), "");
    obey();
  }

  private static Configuration hdfsSettings() {
    Configuration settings = new Configuration();
    settings.set("hdfs.minidfs.basedir", new File(directory, "data").getPath());
    settings.set("dfs.replication", "2");
    settings.set("dfs.namenode.safemode.extension", "0");
    settings.set("dfs.namenode.heartbeat.recheck-interval", "2000");
    settings.set("dfs.heartbeat.interval", "1");
    return settings;
  }

  private static YarnConfiguration yarnSettings(String defaultFs) {
    YarnConfiguration settings = new YarnConfiguration();
    settings.set("fs.defaultFS", defaultFs);
    settings.set("yarn.resourcemanager.hostname", "127.0.0.1");
    settings.set("yarn.resourcemanager.am.max-attempts", "100");
    settings.set("yarn.nm.liveness-monitor.expiry-interval-ms", "10000");
    settings.set("yarn.resourcemanager.nodemanagers.heartbeat-interval-ms", "250");
    settings.set("yarn.scheduler.minimum-allocation-mb", "128");
    settings.set("yarn.scheduler.maximum-allocation-mb", "8192");
    settings.set("yarn.scheduler.capacity.root.queues", "default");
    settings.set("yarn.scheduler.capacity.root.default.capacity", "100");
    settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
    settings.set("yarn.nodemanager.resource.memory-mb", "8192");
    settings.set("yarn.nodemanager.resource.cpu-vcores", "8");
    settings.set("yarn.nodemanager.vmem-check-enabled", "false");
    settings.set("yarn.nodemanager.address", "127.0.0.1:0");
    settings.set("yarn.nodemanager.localizer.address", "127.0.0.1:0");
    settings.set("yarn.nodemanager.collector-service.address", "127.0.0.1:0");
    settings.set("yarn.nodemanager.webapp.address", "127.0.0.1:0");
    settings.set(
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.9");
    return settings;
  }

  private static void startNode() {
    int number = nodes.size();
    YarnConfiguration settings = new YarnConfiguration(yarn.getConfig());
    for (String kind : new String[] {"local", "log"}) {
      File place = new File(directory, "node-" + number + "/" + kind);
      place.mkdirs();
      settings.set("yarn.nodemanager." + kind + "-dirs", place.getPath());
    }
    NodeManager node = new NodeManager();
    node.init(settings);
    node.start();
    nodes.add(node);
  }

  private static void writeConfiguration() throws Exception {
    Configuration core = new Configuration(false);
    core.set("fs.defaultFS", hdfs.getURI().toString());
    core.set("dfs.replication", "2");
    Configuration client = new Configuration(false);
    for (String name : new String[] {"address", "scheduler.address", "webapp.address"}) {
      String key = "yarn.resourcemanager." + name;
      client.set(key, yarn.getConfig().get(key));
    }
    client.set("yarn.resourcemanager.hostname", "127.0.0.1");
    File place = new File(directory, "conf");
    place.mkdir();
    write(core, new File(place, "core-site.xml"));
    write(core, new File(place, "hdfs-site.xml"));
    write(client, new File(place, "yarn-site.xml"));
  }

  private static void write(Configuration settings, File file) throws Exception {
    try (OutputStream output = Files.newOutputStream(file.toPath())) {
      settings.writeXml(output);
    }
  }

  private static void obey() throws Exception {
    while (true) {
      // A pipe ends when nobody writes to it any more.
      try (BufferedReader lines = new BufferedReader(new FileReader(new File(directory, "commands")))) {
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
          String[] words = line.split(" ");
          String answer = "done";
          try {
            obey(words[1], words.length > 2 ? Integer.parseInt(words[2]) : 0);
          } catch (Exception | Error error) {
            answer = error.toString();
          }
          Files.writeString(Path.of(directory.getPath(), "answer-" + words[0]), answer);
        }
      }
    }
  }

  private static void obey(String command, int number) throws Exception {
    switch (command) {
      case "stop-name-node" -> hdfs.shutdownNameNode(0);
      case "start-name-node" -> hdfs.restartNameNode(0, true);
      case "stop-data-node" -> stopped = hdfs.stopDataNode(number);
      case "start-data-node" -> hdfs.restartDataNode(stopped, true);
      case "stop-node" -> nodes.get(number).stop();
      case "start-node" -> startNode();
      default -> throw new IllegalArgumentException(command);
    }
  }

  private static MiniDFSCluster.DataNodeProperties stopped;
}
