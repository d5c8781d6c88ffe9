import org.openapitools.client.apis.*
import org.openapitools.client.infrastructure.*
import org.openapitools.client.models.*
import java.util.UUID

// One use of the Kotlin client that openapi-generator makes.
fun main(args: Array<String>) {
    ApiClient.accessToken = args[1]
    val chats = ChatServiceApi(args[0])
    val messages = MessageServiceApi(args[0])
    val id = chats.createChat(CreateChatRequest(type = ChatType.CHAT_TYPE_GROUP, name = "Kotlin", memberIds = listOf(args[2]))).overview!!.chat!!.chatId!!
    val sent = messages.sendMessage(id, SendMessageRequest(content = "Hello", clientMessageId = UUID.randomUUID()))
    messages.markRead(id, MarkReadRequest(sequence = sent.sequence!!))
    val page = messages.listMessages(id, afterSequence = "0")
    val last = messages.listChanges(id, afterVersion = "0").changes!!.last()
    check(page.messages!![0].content == "Hello" && last.message!!.sequence == "1") { "$page $last" }
    try {
        chats.getChat("chat_" + "0".repeat(26))
        error("a foreign chat was shown")
    } catch (e: ClientException) {
        check(e.statusCode == 403) { "$e" }
    }
    kotlin.system.exitProcess(0) // OkHttp's threads would linger
}
