package deploy

import (
	"os"
	"regexp"
	"testing"
)

func find(t *testing.T, file, pattern string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(pattern).FindSubmatch(b)
	if m == nil {
		t.Fatalf("%s has nothing like %s", file, pattern)
	}
	return string(m[1])
}

// With and without Docker the same versions run.
func TestEnginesAgree(t *testing.T) {
	const compose, script, pom = "compose.yaml", "../../.tools/engines", "../../.tools/engines.d/kafka-pom.xml"
	for name, versions := range map[string][2]string{
		"Kafka": {find(t, compose, `apache/kafka:(\S+)`),
			find(t, pom, `<artifactId>kafka_2\.13</artifactId><version>([^<]+)<`)},
		"Kafka's tools": {find(t, compose, `apache/kafka:(\S+)`),
			find(t, pom, `<artifactId>kafka-tools</artifactId><version>([^<]+)<`)},
		"DynamoDB Local": {find(t, compose, `amazon/dynamodb-local:(\S+)`), find(t, script, `bundles DynamoDB Local (\S+)`)},
	} {
		if versions[0] != versions[1] {
			t.Errorf("%s is %s with Docker and %s without", name, versions[0], versions[1])
		}
	}
}
