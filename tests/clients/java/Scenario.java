import java.io.FileInputStream;
import java.io.InputStream;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.List;
import java.util.logging.LogManager;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;

/**
 * The scenario of tests/clients/README.md with the two Eclipse Paho clients for Java.
 * Words: url, version (3, 4 or 5), name, and with TLS the file of the authority.
 */
public final class Scenario {
    static final int MESSAGES = 200;
    static final int AWAY = 20;

    private final String name;
    private final Client.Opener opener;

    Scenario(String name, Client.Opener opener) {
        this.name = name;
        this.opener = opener;
    }

    public static void main(String[] words) throws Exception {
        String url = words[0].replaceFirst("^mqtts:", "ssl:").replaceFirst("^mqtt:", "tcp:");
        int version = Integer.parseInt(words[1]);
        String name = words[2];
        SSLSocketFactory trust = words.length > 3 ? trusting(words[3]) : null;
        LogManager.getLogManager().reset();
        try {
            if (version == 5) {
                new Scenario(name, (id, session, will) -> new V5(url, name + id, session, will, trust)).run();
                new OnlyV5(name, (id, session) -> new V5(url, name + id, session, null, trust)).run();
            } else {
                new Scenario(name, (id, session, will) -> new V3(url, version, name + id, session, will, trust)).run();
            }
            new Report("end").print();
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    static List<Integer> numbers(List<Client.Message> messages) {
        return messages.stream().map(one -> Integer.valueOf(one.text)).collect(Collectors.toList());
    }

    private Client open(String id) throws Exception {
        return opener.open(id, false, null);
    }

    void run() throws Exception {
        everyQos();
        awayAndBack();
        retained();
        will();
    }

    private void everyQos() throws Exception {
        Client hearing = open("a");
        Client saying = open("b");
        for (int qos = 0; qos < 3; qos++) {
            String topic = name + "/q/" + qos;
            hearing.subscribe(topic, 2);
            for (int number = 0; number < MESSAGES; number++) {
                saying.publish(topic, String.valueOf(number), qos, false);
            }
            saying.settle();
            List<Client.Message> heard = hearing.take(MESSAGES);
            List<Integer> grades = heard.stream().map(one -> one.qos).distinct().collect(Collectors.toList());
            new Report("qos").with("qos", qos).with("numbers", numbers(heard)).with("grades", grades).print();
        }
        hearing.leave();
        saying.leave();
    }

    private void awayAndBack() throws Exception {
        String topic = name + "/away/";
        Client before = opener.open("s", true, null);
        before.subscribe(topic + "+", 2);
        before.end();
        Client saying = open("b");
        for (int number = 0; number < AWAY; number++) {
            int qos = 1 + number % 2;
            saying.publish(topic + qos, String.valueOf(number), qos, false);
        }
        saying.settle();
        Client after = opener.open("s", true, null);
        List<Client.Message> heard = after.take(AWAY);
        new Report("away")
                .with("present", after.present)
                .with("qos1", numbers(heard.stream().filter(one -> one.qos == 1).collect(Collectors.toList())))
                .with("qos2", numbers(heard.stream().filter(one -> one.qos == 2).collect(Collectors.toList())))
                .print();
        after.leave();
        saying.leave();
    }

    private void retained() throws Exception {
        String topic = name + "/retained";
        Client saying = open("b");
        saying.publish(topic, "kept", 1, true);
        saying.settle();
        Client first = open("a");
        first.subscribe(topic, 1);
        Client.Message kept = first.take(1).get(0);
        saying.publish(topic, "", 1, true);
        saying.settle();
        Client second = open("c");
        second.subscribe(topic, 1);
        saying.publish(topic, "end", 1, false);
        saying.settle();
        Client.Message end = second.take(1).get(0);
        new Report("retained")
                .with("before", List.of(kept.text, kept.retained))
                .with("after", List.of(end.text, end.retained))
                .print();
        first.leave();
        second.leave();
        saying.leave();
    }

    private void will() throws Exception {
        String topic = name + "/will";
        Client hearing = open("a");
        hearing.subscribe(topic, 1);
        Client first = opener.open("w", false, topic);
        Client second = open("w");
        Client.Message heard = hearing.take(1).get(0);
        new Report("will").with("payload", heard.text).with("taken_over", first.ended()).print();
        hearing.leave();
        second.leave();
    }

    private static SSLSocketFactory trusting(String authority) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream pem = new FileInputStream(authority)) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context.getSocketFactory();
    }
}
