import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLSocketFactory;
import org.eclipse.paho.mqttv5.client.IMqttToken;
import org.eclipse.paho.mqttv5.client.MqttAsyncClient;
import org.eclipse.paho.mqttv5.client.MqttCallback;
import org.eclipse.paho.mqttv5.client.MqttConnectionOptions;
import org.eclipse.paho.mqttv5.client.MqttDisconnectResponse;
import org.eclipse.paho.mqttv5.client.persist.MemoryPersistence;
import org.eclipse.paho.mqttv5.common.MqttException;
import org.eclipse.paho.mqttv5.common.MqttMessage;
import org.eclipse.paho.mqttv5.common.MqttSubscription;
import org.eclipse.paho.mqttv5.common.packet.MqttProperties;

/** MQTT 5.0. */
final class V5 extends Client implements MqttCallback {
    final MqttAsyncClient mqtt;
    private final List<IMqttToken> sent = new ArrayList<>();
    private final CompletableFuture<Integer> goodbye = new CompletableFuture<>();

    V5(String url, String id, boolean session, String will, SSLSocketFactory trust) throws Exception {
        mqtt = new MqttAsyncClient(url, id, new MemoryPersistence());
        mqtt.setCallback(this);
        MqttConnectionOptions options = new MqttConnectionOptions();
        options.setCleanStart(!session);
        options.setSessionExpiryInterval(session ? 600L : 0L);
        // No topic aliases from the broker: release 1.2.5 hands over such a message with an empty topic.
        options.setAutomaticReconnect(false);
        options.setConnectionTimeout(DEADLINE_S);
        if (trust != null) {
            options.setSocketFactory(trust);
        }
        if (will != null) {
            options.setWill(will, new MqttMessage("gone".getBytes(), 1, false, new MqttProperties()));
        }
        IMqttToken token = mqtt.connect(options);
        waitFor(token);
        present = token.getSessionPresent();
    }

    static IMqttToken waitFor(IMqttToken token) throws Exception {
        token.waitForCompletion(DEADLINE_S * 1_000L);
        return token;
    }

    @Override
    void subscribe(String filter, int qos) throws Exception {
        subscribe(filter, qos, new MqttProperties());
    }

    int[] subscribe(String filter, int qos, MqttProperties properties) throws Exception {
        MqttSubscription[] wanted = {new MqttSubscription(filter, qos)};
        return waitFor(mqtt.subscribe(wanted, null, null, properties)).getReasonCodes();
    }

    @Override
    void publish(String topic, String text, int qos, boolean retain) throws Exception {
        sent.add(mqtt.publish(topic, text.getBytes(), qos, retain));
    }

    IMqttToken publish(String topic, String text, MqttProperties properties) throws Exception {
        return waitFor(mqtt.publish(topic, new MqttMessage(text.getBytes(), 1, false, properties)));
    }

    @Override
    void settle() throws Exception {
        for (IMqttToken token : sent) {
            waitFor(token);
        }
        sent.clear();
    }

    @Override
    void end() throws Exception {
        waitFor(mqtt.disconnect());
    }

    @Override
    void leave() throws Exception {
        mqtt.disconnect();
    }

    @Override
    Integer ended() throws Exception {
        return goodbye.get(DEADLINE_S, TimeUnit.SECONDS);
    }

    @Override
    public void messageArrived(String topic, MqttMessage one) {
        inbox.add(new Message(topic, one.getPayload(), one.getQos(), one.isRetained(), one));
    }

    @Override
    public void disconnected(MqttDisconnectResponse response) {
        goodbye.complete(response.getReturnCode());
    }

    @Override
    public void mqttErrorOccurred(MqttException exception) {}

    @Override
    public void deliveryComplete(IMqttToken token) {}

    @Override
    public void connectComplete(boolean reconnect, String uri) {}

    @Override
    public void authPacketArrived(int reasonCode, MqttProperties properties) {}
}
