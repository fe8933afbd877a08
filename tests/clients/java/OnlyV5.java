import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.stream.Collectors;
import org.eclipse.paho.mqttv5.common.MqttMessage;
import org.eclipse.paho.mqttv5.common.packet.MqttProperties;
import org.eclipse.paho.mqttv5.common.packet.UserProperty;

/** The steps that need MQTT 5.0. */
final class OnlyV5 {
    interface Opener {
        V5 open(String id, boolean session) throws Exception;
    }

    private final String name;
    private final Opener opener;
    // One pair for all steps: to connect takes this library a third of a second.
    private V5 hearing;
    private V5 saying;

    OnlyV5(String name, Opener opener) {
        this.name = name;
        this.opener = opener;
    }

    void run() throws Exception {
        hearing = opener.open("a", false);
        saying = opener.open("b", false);
        properties();
        alias();
        expiry();
        shared();
        codes();
    }

    private void properties() throws Exception {
        MqttProperties identified = new MqttProperties();
        identified.setSubscriptionIdentifiers(new ArrayList<>(List.of(7)));
        identified.setSubscriptionIdentifier(7);
        hearing.subscribe(name + "/p/+", 1, identified);
        MqttProperties said = new MqttProperties();
        said.setUserProperties(
                List.of(new UserProperty("k", "1"), new UserProperty("k", "2"), new UserProperty("l", "3")));
        said.setContentType("text/plain");
        said.setResponseTopic("reply");
        said.setCorrelationData(new byte[] {0, 1, -1});
        said.setMessageExpiryInterval(60L);
        said.setPayloadFormat(true);
        saying.publish(name + "/p/a", "x", said);
        MqttProperties found = ((MqttMessage) hearing.take(1).get(0).raw).getProperties();
        List<Integer> correlation = new ArrayList<>();
        for (byte one : found.getCorrelationData()) {
            correlation.add(one & 0xFF);
        }
        new Report("properties")
                .with(
                        "user",
                        found.getUserProperties().stream()
                                .map(one -> List.of(one.getKey(), one.getValue()))
                                .collect(Collectors.toList()))
                .with("identifiers", found.getSubscriptionIdentifiers())
                .with("content_type", found.getContentType())
                .with("response_topic", found.getResponseTopic())
                .with("correlation", correlation)
                .with("expiry", found.getMessageExpiryInterval())
                .with("text", found.getPayloadFormat())
                .print();
    }

    /** The library uses an alias by itself from the second message of a topic on. */
    private void alias() throws Exception {
        String topic = name + "/alias";
        hearing.subscribe(topic, 1);
        for (int number = 0; number < 3; number++) {
            saying.publish(topic, String.valueOf(number), new MqttProperties());
        }
        List<Client.Message> heard = hearing.take(3);
        new Report("alias")
                .with("topics", heard.stream().map(one -> one.topic).collect(Collectors.toList()))
                .with("numbers", Scenario.numbers(heard))
                .print();
    }

    private void expiry() throws Exception {
        String topic = name + "/expiry";
        V5 before = opener.open("s", true);
        before.subscribe(topic, 1);
        before.end();
        MqttProperties brief = new MqttProperties();
        brief.setMessageExpiryInterval(1L);
        saying.publish(topic, "short", brief);
        saying.publish(topic, "lasting", new MqttProperties());
        Thread.sleep(1_500);
        V5 after = opener.open("s", true);
        List<Client.Message> heard = after.take(1);
        new Report("expiry")
                .with("payloads", heard.stream().map(one -> one.text).collect(Collectors.toList()))
                .print();
        after.leave();
    }

    private void shared() throws Exception {
        List<V5> members = List.of(opener.open("m", false), opener.open("n", false));
        for (V5 member : members) {
            member.subscribe("$share/g/" + name + "/shared", 1);
        }
        for (int number = 0; number < Scenario.AWAY; number++) {
            saying.publish(name + "/shared", String.valueOf(number), new MqttProperties());
        }
        List<Integer> shares = new ArrayList<>();
        List<Integer> all = new ArrayList<>();
        for (V5 member : members) {
            List<Client.Message> heard = member.take(Scenario.AWAY / 2);
            shares.add(heard.size());
            all.addAll(Scenario.numbers(heard));
            member.leave();
        }
        Collections.sort(all);
        new Report("shared").with("shares", shares).with("numbers", all).print();
    }

    private void codes() throws Exception {
        int[] granted = hearing.subscribe(name + "/codes/#", 2, new MqttProperties());
        int[] nobody = saying.publish(name + "/nobody", "x", new MqttProperties()).getReasonCodes();
        int[] none = V5.waitFor(hearing.mqtt.unsubscribe(name + "/none")).getReasonCodes();
        new Report("codes")
                .with("granted", Arrays.stream(granted).boxed().collect(Collectors.toList()))
                .with("no_subscriber", nobody[0])
                .with("no_subscription", none[0])
                .print();
    }
}
