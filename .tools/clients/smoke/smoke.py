"""One use of the Python client that openapi-generator makes."""

import sys
import uuid

import openapi_client as parley
from openapi_client.exceptions import ForbiddenException

base, token, other = sys.argv[1:4]
client = parley.ApiClient(parley.Configuration(host=base, access_token=token))
chats, messages = parley.ChatServiceApi(client), parley.MessageServiceApi(client)
created = chats.create_chat(parley.CreateChatRequest(type=parley.ChatType.CHAT_TYPE_GROUP, name="Python", memberIds=[other]))
chat_id = created.overview.chat.chat_id
parley.AddMemberRequest(userId="auth0|123")  # its pattern must be one that Python can read
sent = messages.send_message(chat_id, parley.SendMessageRequest(content="Hello", clientMessageId=uuid.uuid4()))
messages.mark_read(chat_id, parley.MarkReadRequest(sequence=sent.sequence))
page = messages.list_messages(chat_id, after_sequence="0")
last = messages.list_changes(chat_id, after_version="0").changes[-1]
assert page.messages[0].content == "Hello" and last.message.sequence == "1", (page, last)
try:
    chats.get_chat("chat_" + "0" * 26)
    raise AssertionError("a foreign chat was shown")
except ForbiddenException as e:
    assert "NOT_A_MEMBER" in e.body, e
