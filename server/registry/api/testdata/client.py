"""Uses a registry as an application would, with Confluent's own client.

Argument: the registry's address. Needs confluent-kafka[protobuf,schemaregistry].
"""
import sys

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

FIELD = descriptor_pb2.FieldDescriptorProto


def file(name, imports, message, fields):
    """Makes a file of one message, without JSON names, as Python's compiler does."""
    f = descriptor_pb2.FileDescriptorProto(name=name, package="shop.v1", syntax="proto3", dependency=imports)
    m = f.message_type.add(name=message)
    for number, (field, kind, repeated, type_name) in enumerate(fields, 1):
        m.field.add(
            name=field, number=number, type=kind, type_name=type_name,
            label=FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL,
        )
    return f


pool = descriptor_pool.DescriptorPool()
pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
for f in (
    file("item.proto", [], "Item", [("item_code", FIELD.TYPE_STRING, False, None)]),
    file("order.proto", ["google/protobuf/timestamp.proto", "item.proto"], "Order", [
        ("order_id", FIELD.TYPE_STRING, False, None),
        ("placed_at", FIELD.TYPE_MESSAGE, False, ".google.protobuf.Timestamp"),
        ("items", FIELD.TYPE_MESSAGE, True, ".shop.v1.Item"),
    ]),
):
    pool.Add(f)
Order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.v1.Order"))

client = SchemaRegistryClient({"url": sys.argv[1]})
context = SerializationContext("orders", MessageField.VALUE)
order = Order(order_id="1")
order.items.add(item_code="x")

# Registers what the message imports, then the message, and reads it back.
record = ProtobufSerializer(Order, client, {"use.deprecated.format": False})(order, context)
assert record[0] == 0 and record[5] == 0, record[:6]
assert ProtobufDeserializer(Order, {"use.deprecated.format": False}, client)(record, context) == order

latest = client.get_latest_version("orders-value")
assert latest.version == 1 and latest.schema_id == int.from_bytes(record[1:5], "big"), latest
assert latest.schema.schema_str.startswith('syntax = "proto3"'), latest.schema.schema_str
assert [r.name for r in latest.schema.references] == ["item.proto"], latest.schema.references

# Serializers that look a schema up find the same id.
fresh = SchemaRegistryClient({"url": sys.argv[1]})
for settings in ({"use.latest.version": True}, {"normalize.schemas": True}, {}):
    settings.update({"use.deprecated.format": False, "auto.register.schemas": False})
    assert ProtobufSerializer(Order, fresh, settings)(order, context)[:6] == record[:6], settings

# What breaks consumers is refused, until the level says otherwise.
broken = Schema('syntax = "proto3"; package shop.v1; message Order { int64 order_id = 1; }', "PROTOBUF")
assert not client.test_compatibility("orders-value", broken)
try:
    client.register_schema("orders-value", broken)
    raise AssertionError("the broken schema was registered")
except SchemaRegistryError as e:
    assert (e.http_status_code, e.error_code) == (409, 409), e
client.set_compatibility("orders-value", "NONE")
assert client.get_compatibility("orders-value") == "NONE"
assert client.register_schema("orders-value", broken) != latest.schema_id
assert client.get_versions("orders-value") == [1, 2]

# Deleted versions stay readable by id, until they are deleted for good.
assert client.delete_subject("orders-value") == [1, 2]
assert "orders-value" not in client.get_subjects()
assert SchemaRegistryClient({"url": sys.argv[1]}).get_schema(latest.schema_id).schema_type == "PROTOBUF"
client.delete_subject("orders-value", permanent=True)
try:
    SchemaRegistryClient({"url": sys.argv[1]}).get_schema(latest.schema_id)
    raise AssertionError("the schema is still there")
except SchemaRegistryError as e:
    assert e.error_code == 40403, e

# Parley's own events are there for everybody.
own = client.get_latest_version("chats.created-parley.event.v1.ChatCreated")
assert "message ChatCreated" in own.schema.schema_str and own.schema.references
print("ok")
