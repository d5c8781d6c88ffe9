import org.openapitools.client.*;
import org.openapitools.client.api.*;
import org.openapitools.client.model.*;
import java.util.List;
import java.util.UUID;

// One use of the Java client that openapi-generator makes.
public class Smoke {
  public static void main(String[] args) throws Exception {
    ApiClient client = new ApiClient();
    client.updateBaseUri(args[0]);
    client.setRequestInterceptor(request -> request.header("Authorization", "Bearer " + args[1]));
    var chats = new ChatServiceApi(client);
    var messages = new MessageServiceApi(client);
    String id = chats.createChat(new CreateChatRequest().type(ChatType.CHAT_TYPE_GROUP).name("Java").memberIds(List.of(args[2])), null)
        .getOverview().getChat().getChatId();
    var sent = messages.sendMessage(id, new SendMessageRequest().content("Hello").clientMessageId(UUID.randomUUID()), null);
    messages.markRead(id, new MarkReadRequest().sequence(sent.getSequence()), null);
    var page = messages.listMessages(id, null, null, "0", null);
    var changes = messages.listChanges(id, "0", null, null).getChanges();
    var last = changes.get(changes.size() - 1);
    if (!page.getMessages().get(0).getContent().equals("Hello") || !last.getMessage().getSequence().equals("1")) throw new AssertionError(page + " " + changes);
    try {
      chats.getChat("chat_" + "0".repeat(26), null);
      throw new AssertionError("a foreign chat was shown");
    } catch (ApiException e) {
      if (e.getCode() != 403 || !e.getResponseBody().contains("NOT_A_MEMBER")) throw e;
    }
  }
}
