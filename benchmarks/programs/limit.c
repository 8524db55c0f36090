/*
 * What this machine allows: the benchmark's scenario in C, in one process with one thread.
 *
 *   limit floor|echo BROKER SOURCE TARGET DATABASE
 *
 * floor  consumes a batch, writes its orders and its outbox rows in one transaction with one INSERT each for the whole batch,
 *        publishes, waits for the confirms and acknowledges once. The next transaction deletes the outbox rows.
 * echo   publishes what it consumes, and opens no database.
 *
 * It does what a handler's batch has to do, and nothing more: no retries, no relay, no answer to a duplicate. It ends at the
 * first error. Standard input and output carry the lines of `benchmarks/job.py`: ready, go, started, stop, usage.
 */
#include <ctype.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <libpq-fe.h>

enum { BATCH = 100, PREFETCH = 3 * BATCH, ID_SIZE = 80, BODY_SIZE = 400, SQL_SIZE = 1 << 18, LINE_SIZE = 256 };
enum { CHANNEL = 1, PERSISTENT = 2, FRAME_MAX = 131072, IDLE_MICROSECONDS = 20000 };

typedef struct {
    char id[ID_SIZE];       /* of the message */
    char order_id[ID_SIZE]; /* in its body */
    char body[BODY_SIZE];
    size_t length;
} Order;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void check(amqp_rpc_reply_t reply, const char *what)
{
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION) fail(what, amqp_error_string2(reply.library_error));
    if (reply.reply_type != AMQP_RESPONSE_NORMAL) fail(what, "refused by the broker");
}

static amqp_connection_state_t connect_broker(const char *url)
{
    char *parts = strdup(url); /* the parsed values point into it, so it is never freed */
    struct amqp_connection_info info;
    amqp_default_connection_info(&info);
    if (parts == NULL || amqp_parse_url(parts, &info) != AMQP_STATUS_OK) fail("broker", "not a URL");
    amqp_connection_state_t connection = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(connection);
    if (socket == NULL || amqp_socket_open(socket, info.host, info.port) != AMQP_STATUS_OK) fail("broker", "not reachable");
    const char *vhost = *info.vhost ? info.vhost : "/";
    check(amqp_login(connection, vhost, 0, FRAME_MAX, 0, AMQP_SASL_METHOD_PLAIN, info.user, info.password), "login");
    amqp_channel_open(connection, CHANNEL);
    check(amqp_get_rpc_reply(connection), "channel");
    return connection;
}

static void close_broker(amqp_connection_state_t connection)
{
    amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(connection);
}

static PGconn *connect_database(const char *url)
{
    PGconn *database = PQconnectdb(url);
    if (PQstatus(database) != CONNECTION_OK) fail("database", PQerrorMessage(database));
    return database;
}

/* The statements are built from text, so only text that needs no escaping is accepted. */
static void copy_plain(char *target, size_t size, const char *source, size_t length)
{
    if (length >= size) fail("message", "too long");
    for (size_t i = 0; i < length; i++)
        if (source[i] == '\'' || source[i] == '\\' || iscntrl((unsigned char)source[i])) fail("message", "needs escaping");
    memcpy(target, source, length);
    target[length] = 0;
}

static void decode(Order *order, const amqp_message_t *message)
{
    static const char before[] = "{\"order_id\":\"";
    const char *body = message->body.bytes;
    const size_t skipped = sizeof before - 1, length = message->body.len;
    if (length <= skipped || memcmp(body, before, skipped) != 0) fail("message", "not a PlaceOrder");
    const char *end = memchr(body + skipped, '"', length - skipped);
    if (end == NULL) fail("message", "not a PlaceOrder");
    copy_plain(order->id, ID_SIZE, message->properties.message_id.bytes, message->properties.message_id.len);
    copy_plain(order->order_id, ID_SIZE, body + skipped, (size_t)(end - body) - skipped);
    copy_plain(order->body, BODY_SIZE, body, length);
    order->length = length;
}

/* Take what waits, at most a batch; returns 0 after a while without a message. */
static int consume(amqp_connection_state_t receiving, Order *orders, uint64_t *last_tag)
{
    int taken = 0;
    while (taken < BATCH) {
        amqp_envelope_t envelope;
        struct timeval patience = {0, taken ? 0 : IDLE_MICROSECONDS};
        amqp_maybe_release_buffers(receiving);
        amqp_rpc_reply_t reply = amqp_consume_message(receiving, &envelope, &patience, 0);
        if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION && reply.library_error == AMQP_STATUS_TIMEOUT) break;
        check(reply, "consume");
        *last_tag = envelope.delivery_tag;
        decode(&orders[taken++], &envelope.message);
        amqp_destroy_envelope(&envelope);
    }
    return taken;
}

static void commit(PGconn *database, const Order *orders, int count, const Order *previous, int finished)
{
    static char sql[SQL_SIZE]; /* a batch of the longest ids and bodies fits */
    int end = sprintf(sql, "begin;");
    if (finished) {
        end += sprintf(sql + end, "delete from baseline_outbox where id in (");
        for (int i = 0; i < finished; i++) end += sprintf(sql + end, "%s'%s'", i ? "," : "", previous[i].id);
        end += sprintf(sql + end, ");");
    }
    end += sprintf(sql + end, "insert into baseline_outbox(id, messages) values");
    for (int i = 0; i < count; i++) end += sprintf(sql + end, "%s('%s','%s')", i ? "," : "", orders[i].id, orders[i].body);
    end += sprintf(sql + end, " on conflict do nothing;insert into baseline_order(order_id) values");
    for (int i = 0; i < count; i++) end += sprintf(sql + end, "%s('%s')", i ? "," : "", orders[i].order_id);
    sprintf(sql + end, ";commit");
    PGresult *result = PQexec(database, sql);
    if (PQresultStatus(result) != PGRES_COMMAND_OK) fail("commit", PQerrorMessage(database));
    PQclear(result);
}

static void publish(amqp_connection_state_t sending, const char *target, Order *order)
{
    amqp_basic_properties_t properties = {0};
    properties._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG;
    properties.delivery_mode = PERSISTENT;
    properties.message_id = amqp_cstring_bytes(order->id);
    amqp_bytes_t body = {order->length, order->body};
    if (amqp_basic_publish(sending, CHANNEL, amqp_empty_bytes, amqp_cstring_bytes(target), 0, 0, &properties, body))
        fail("publish", "failed");
}

/* Wait until the broker has confirmed a batch, whose publishes follow the first `before` ones. It confirms in any order. */
static void await_confirms(amqp_connection_state_t sending, uint64_t before, int count)
{
    bool confirmed[BATCH] = {false};
    for (int left = count; left > 0;) {
        amqp_frame_t frame;
        amqp_maybe_release_buffers(sending);
        if (amqp_simple_wait_frame(sending, &frame) != AMQP_STATUS_OK) fail("confirm", "connection lost");
        if (frame.frame_type != AMQP_FRAME_METHOD) continue;
        if (frame.payload.method.id != AMQP_BASIC_ACK_METHOD) fail("confirm", "a publish was refused");
        const amqp_basic_ack_t *ack = frame.payload.method.decoded;
        for (uint64_t tag = ack->multiple ? before + 1 : ack->delivery_tag; tag <= ack->delivery_tag; tag++) {
            left -= !confirmed[tag - before - 1];
            confirmed[tag - before - 1] = true;
        }
    }
}

static bool told_to_stop(void)
{
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, 0) > 0; /* "stop", or the end of a parent that died */
}

static void work(amqp_connection_state_t receiving, amqp_connection_state_t sending, PGconn *database, const char *target)
{
    static Order batches[2][BATCH];
    Order *orders = batches[0], *previous = batches[1];
    uint64_t published = 0, tag = 0;
    int finished = 0;
    for (;;) {
        int count = consume(receiving, orders, &tag);
        if (count == 0) {
            if (told_to_stop()) return;
            continue;
        }
        if (database != NULL) commit(database, orders, count, previous, finished);
        for (int i = 0; i < count; i++) publish(sending, target, &orders[i]);
        await_confirms(sending, published, count);
        amqp_basic_ack(receiving, CHANNEL, tag, 1);
        published += (uint64_t)count;
        finished = count;
        Order *next = previous;
        previous = orders;
        orders = next;
    }
}

static void say(const char *line)
{
    puts(line);
    fflush(stdout);
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* Linux's own figure for the program, in bytes: `ru_maxrss` would remember the interpreter that it replaced. */
static long peak_memory(void)
{
    char line[LINE_SIZE];
    long kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL) sscanf(line, "VmHWM: %ld", &kilobytes);
    if (status != NULL) fclose(status);
    return kilobytes * 1024;
}

int main(int count, char **arguments)
{
    char line[LINE_SIZE];
    if (count != 6) fail("usage", "limit floor|echo BROKER SOURCE TARGET DATABASE");
    const bool echo = strcmp(arguments[1], "echo") == 0;
    const char *broker = arguments[2], *source = arguments[3], *target = arguments[4];
    amqp_connection_state_t receiving = connect_broker(broker), sending = connect_broker(broker);
    PGconn *database = echo ? NULL : connect_database(arguments[5]);
    amqp_basic_qos(receiving, CHANNEL, 0, PREFETCH, 0);
    amqp_confirm_select(sending, CHANNEL);
    say("ready");
    if (fgets(line, sizeof line, stdin) == NULL || strcmp(line, "go\n") != 0) return 0;
    const double before = cpu_seconds();
    amqp_basic_consume(receiving, CHANNEL, amqp_cstring_bytes(source), amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
    check(amqp_get_rpc_reply(receiving), "consume");
    say("started");
    work(receiving, sending, database, target);
    printf("{\"cpu\": %.6f, \"peak\": %ld}\n", cpu_seconds() - before, peak_memory());
    close_broker(receiving);
    close_broker(sending);
    PQfinish(database);
    return 0;
}
