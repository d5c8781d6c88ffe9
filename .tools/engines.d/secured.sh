# shellcheck shell=bash
# Kafka and Redis as a careful operator has them, for .tools/engines, which sources this file.
#
# Kafka: TLS, users by SCRAM-SHA-512 and PLAIN on one port, by certificate on another, and an authorizer that denies
# what is not allowed; nothing is allowed yet. Redis: TLS and no default user. Beside them a Redis Cluster of three, and
# a primary with a replica and a sentinel, both without TLS. Certificates of an authority of their own, and one of a
# stranger's, are made at each start, and one password for all users.

secured_redis=(secured-redis secured-cluster-1 secured-cluster-2 secured-cluster-3 secured-primary secured-replica secured-sentinel)
secured_users=(admin parley-relay parley-fanout parley-ops parley-operator parley-topics parley-worker parley-nobody)

certificate() { # NAME COMMON-NAME AUTHORITY
  local d="$run/secured"
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$d/$1.key" -out "$d/$1.csr" -subj "/CN=$2" 2>/dev/null
  printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n' >"$d/$1.ext"
  openssl x509 -req -in "$d/$1.csr" -CA "$d/$3.pem" -CAkey "$d/$3.key" -CAcreateserial -days 30 -extfile "$d/$1.ext" -out "$d/$1.pem" 2>/dev/null
  rm "$d/$1.csr" "$d/$1.ext"
}

authority() { # NAME
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -keyout "$run/secured/$1.key" -out "$run/secured/$1.pem" \
    -subj "/CN=$1" -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign 2>/dev/null
}

secured_certificates() {
  need openssl "TLS" openssl
  local d="$run/secured"
  mkdir -p "$d"
  chmod 700 "$d"
  authority ca
  authority other-ca
  certificate server broker ca
  certificate client parley-relay ca
  certificate other parley-relay other-ca
  cat "$d/server.key" "$d/server.pem" >"$d/server-both.pem"
  openssl rand -hex 16 >"$d/password"
}

secured_kafka() {
  local d="$run/secured" k="$run/secured-kafka" id password sasl mutual controller users="" scram=() u
  password="$(cat "$d/password")"
  id="$(kafka_id)"
  free_port && sasl=$port
  free_port && mutual=$port
  free_port && controller=$port
  mkdir -p "$k"
  for u in "${secured_users[@]}"; do
    users+=" user_$u=\"$password\""
    scram+=(--add-scram "SCRAM-SHA-512=[name=$u,password=$password]")
  done
  cat >"$k/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:$controller
listeners=SASL_SSL://127.0.0.1:$sasl,SSL://127.0.0.1:$mutual,CONTROLLER://127.0.0.1:$controller
advertised.listeners=SASL_SSL://127.0.0.1:$sasl,SSL://127.0.0.1:$mutual,CONTROLLER://127.0.0.1:$controller
controller.listener.names=CONTROLLER
inter.broker.listener.name=SSL
listener.security.protocol.map=SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL
ssl.keystore.type=PEM
ssl.keystore.location=$d/server-both.pem
ssl.truststore.type=PEM
ssl.truststore.location=$d/ca.pem
listener.name.ssl.ssl.client.auth=required
listener.name.controller.ssl.client.auth=required
sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required$users;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users=User:CN=broker;User:admin
log.dirs=$k/data
$(broker_settings 1 1)
PROPERTIES
  java_kafka kafka.tools.StorageTool format -t "$id" -c "$k/server.properties" --standalone "${scram[@]}" >"$k/format.log" 2>&1 ||
    { cat "$k/format.log" >&2; fail "Kafka's storage cannot be formatted"; }
  launch secured-kafka "$sasl" java $jvm ${archived[@]+"${archived[@]}"} -Xmx384m -cp "$libs/*" "-Dlog4j2.configurationFile=$tools/engines.d/kafka-log4j2.properties" kafka.Kafka "$k/server.properties"
  {
    echo "PARLEY_TEST_SECURED_KAFKA=127.0.0.1:$sasl"
    echo "PARLEY_TEST_SECURED_KAFKA_MUTUAL=127.0.0.1:$mutual"
  } >>"$d/env"
}

secured_server() { # NAME PORT LINE...: a Redis of these settings
  local name="$1" at="$2"
  shift 2
  mkdir -p "$run/$name"
  {
    printf 'bind 127.0.0.1\ndir %s\nsave ""\nappendonly no\n' "$run/$name"
    printf 'proc-title-template "{title} %s"\n' "$run/$name"
    printf '%s\n' "$@"
  } >"$run/$name/redis.conf"
  launch "$name" "$at" "$redis" "$run/$name/redis.conf" ${sentinel:+--sentinel}
}

secured_redis_up() {
  local d="$run/secured" password at=() bus i sentinel=""
  password="$(cat "$d/password")"
  free_port && at[0]=$port
  secured_server secured-redis "${at[0]}" "port 0" "tls-port ${at[0]}" "tls-cert-file $d/server.pem" "tls-key-file $d/server.key" \
    "tls-ca-cert-file $d/ca.pem" "tls-auth-clients no" "user default off" "user admin on >$password ~* &* +@all"
  for i in 1 2 3; do
    free_port && at[i]=$port
    free_port && bus=$port
    secured_server "secured-cluster-$i" "${at[i]}" "port ${at[i]}" "cluster-enabled yes" "cluster-port $bus" "cluster-node-timeout 5000" \
      "user default on >$password ~* &* +@all"
  done
  free_port && at[4]=$port
  free_port && at[5]=$port
  free_port && at[6]=$port
  secured_server secured-primary "${at[4]}" "port ${at[4]}" "requirepass $password" "masterauth $password" "repl-diskless-sync-delay 0"
  secured_server secured-replica "${at[5]}" "port ${at[5]}" "requirepass $password" "masterauth $password" "replicaof 127.0.0.1 ${at[4]}" "repl-diskless-sync-delay 0"
  sentinel=yes
  secured_server secured-sentinel "${at[6]}" "port ${at[6]}" "requirepass $password" "sentinel monitor parley 127.0.0.1 ${at[4]} 1" \
    "sentinel auth-pass parley $password" "sentinel down-after-milliseconds parley 2000" "sentinel failover-timeout parley 10000"
  for i in 0 1 2 3 4 5 6; do await "${secured_redis[i]}" "${at[i]}"; done
  REDISCLI_AUTH="$password" redis-cli --cluster create "127.0.0.1:${at[1]}" "127.0.0.1:${at[2]}" "127.0.0.1:${at[3]}" --cluster-yes >"$d/cluster.log" 2>&1 ||
    { cat "$d/cluster.log" >&2; fail "the Redis Cluster cannot be made"; }
  for ((i = 0; i < start_seconds * 10; i++)); do # all nodes must have heard of it
    local known=0 n
    for n in 1 2 3; do
      [[ "$(REDISCLI_AUTH="$password" redis-cli -p "${at[n]}" cluster info 2>/dev/null)" == *cluster_state:ok* ]] && known=$((known + 1))
    done
    ((known == 3)) && break
    sleep 0.1
  done
  ((known == 3)) || fail "the Redis Cluster does not come together"
  {
    echo "PARLEY_TEST_SECURED_REDIS=rediss://admin@127.0.0.1:${at[0]}"
    echo "PARLEY_TEST_SECURED_REDIS_CLUSTER=redis://127.0.0.1:${at[1]},127.0.0.1:${at[2]},127.0.0.1:${at[3]}"
    echo "PARLEY_TEST_SECURED_REDIS_SENTINEL=redis://127.0.0.1:${at[6]}?master=parley"
  } >>"$d/env"
}

secured_runs() {
  local name
  for name in secured-kafka "${secured_redis[@]}"; do alive "$name" || return 1; done
}

up_secured() {
  if [[ -f "$run/secured.env" ]] && secured_runs; then return; fi
  down_secured
  fetch kafka
  fetch redis
  need redis-cli Redis redis-tools
  secured_certificates
  secured_kafka
  secured_redis_up
  # The port answers before the broker knows who may do what.
  local d="$run/secured" i password
  password="$(cat "$d/password")"
  cat >"$d/admin.properties" <<PROPERTIES
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="$password";
ssl.truststore.type=PEM
ssl.truststore.location=$d/ca.pem
PROPERTIES
  local at
  at="$(sed -n 's/^PARLEY_TEST_SECURED_KAFKA=//p' "$d/env")"
  await secured-kafka "${at##*:}"
  for ((i = 0; i < 20; i++)); do
    java_kafka org.apache.kafka.tools.BrokerApiVersionsCommand --bootstrap-server "$at" --command-config "$d/admin.properties" >"$d/kafka.log" 2>&1 && break
    sleep 1
  done
  ((i < 20)) || { tail -n 5 "$d/kafka.log" >&2; fail "Kafka does not let its administrator in"; }
  {
    cat "$d/env"
    echo "PARLEY_TEST_SECURED_DIR=$d"
    echo "PARLEY_TEST_SECURED_PASSWORD=$password"
  } >"$run/secured.env"
  say "secured Kafka, Redis, Redis Cluster, Redis with a sentinel"
}

down_secured() {
  local name
  for name in secured-kafka "${secured_redis[@]}"; do stop "$name"; done
  rm -rf "${run:?}/secured" "$run/secured.env"
}
