import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.util.HexFormat;
import org.apache.kafka.common.utils.Utils;

/**
 * Reads keys, one a line in hex, and prints of each: bucket, then what Kafka's own partitioner says for 8, 16, 64 and 128,
 * and for 3, 7, 12, 100 and 255.
 */
public class Partition {
  public static void main(String[] args) throws Exception {
    var in = new BufferedReader(new InputStreamReader(System.in));
    var out = new BufferedWriter(new OutputStreamWriter(System.out));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      int hash = Utils.toPositive(Utils.murmur2(HexFormat.of().parseHex(line.strip())));
      out.write(hash % 4096 + "");
      for (int n : new int[] {8, 16, 64, 128, 3, 7, 12, 100, 255}) {
        out.write(" " + hash % n);
      }
      out.write("\n");
    }
    out.flush();
  }
}
