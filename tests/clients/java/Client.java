import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.ArrayList;

/** What the scenario asks of a library, whichever it is. Messages are kept in the order in which they arrive. */
abstract class Client {
    /** Longer than any step takes on a busy machine. */
    static final int DEADLINE_S = 20;

    static final class Message {
        final String topic;
        final String text;
        final int qos;
        final boolean retained;
        /** The library's own message. */
        final Object raw;

        Message(String topic, byte[] payload, int qos, boolean retained, Object raw) {
            this.topic = topic;
            this.text = new String(payload);
            this.qos = qos;
            this.retained = retained;
            this.raw = raw;
        }
    }

    interface Opener {
        /** A connected client; {@code will} is the topic of a will that says "gone", or null. */
        Client open(String id, boolean session, String will) throws Exception;
    }

    final LinkedBlockingQueue<Message> inbox = new LinkedBlockingQueue<>();
    boolean present;

    abstract void subscribe(String filter, int qos) throws Exception;

    /** Does not wait; {@link #settle} waits for every acknowledgement. */
    abstract void publish(String topic, String text, int qos, boolean retain) throws Exception;

    abstract void settle() throws Exception;

    /** DISCONNECT, and waits until the library is done, which takes it half a second. */
    abstract void end() throws Exception;

    /** DISCONNECT, without waiting. */
    abstract void leave() throws Exception;

    /** Waits until the broker has ended the connection. The reason code, null before MQTT 5. */
    abstract Integer ended() throws Exception;

    List<Message> take(int count) throws Exception {
        long late = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_S);
        List<Message> found = new ArrayList<>();
        while (found.size() < count) {
            Message one = inbox.poll(late - System.nanoTime(), TimeUnit.NANOSECONDS);
            if (one == null) {
                throw new IllegalStateException(
                        "not within " + DEADLINE_S + " s: " + count + " messages, " + found.size() + " came");
            }
            found.add(one);
        }
        inbox.drainTo(found);
        return found;
    }
}
