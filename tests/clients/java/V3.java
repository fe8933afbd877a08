import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLSocketFactory;
import org.eclipse.paho.client.mqttv3.IMqttDeliveryToken;
import org.eclipse.paho.client.mqttv3.IMqttToken;
import org.eclipse.paho.client.mqttv3.MqttAsyncClient;
import org.eclipse.paho.client.mqttv3.MqttCallback;
import org.eclipse.paho.client.mqttv3.MqttConnectOptions;
import org.eclipse.paho.client.mqttv3.MqttMessage;
import org.eclipse.paho.client.mqttv3.persist.MemoryPersistence;

/** MQTT 3.1 and 3.1.1. */
final class V3 extends Client implements MqttCallback {
    private final MqttAsyncClient mqtt;
    private final List<IMqttToken> sent = new ArrayList<>();
    private final CountDownLatch lost = new CountDownLatch(1);

    V3(String url, int version, String id, boolean session, String will, SSLSocketFactory trust) throws Exception {
        mqtt = new MqttAsyncClient(url, id, new MemoryPersistence());
        mqtt.setCallback(this);
        MqttConnectOptions options = new MqttConnectOptions();
        options.setMqttVersion(version);
        options.setCleanSession(!session);
        options.setMaxInflight(1_000);
        options.setConnectionTimeout(DEADLINE_S);
        if (trust != null) {
            options.setSocketFactory(trust);
        }
        if (will != null) {
            options.setWill(will, "gone".getBytes(), 1, false);
        }
        IMqttToken token = mqtt.connect(options);
        waitFor(token);
        present = token.getSessionPresent();
    }

    private static void waitFor(IMqttToken token) throws Exception {
        token.waitForCompletion(DEADLINE_S * 1_000L);
    }

    @Override
    void subscribe(String filter, int qos) throws Exception {
        waitFor(mqtt.subscribe(filter, qos));
    }

    @Override
    void publish(String topic, String text, int qos, boolean retain) throws Exception {
        sent.add(mqtt.publish(topic, text.getBytes(), qos, retain));
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
        if (!lost.await(DEADLINE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the connection was not ended within " + DEADLINE_S + " s");
        }
        return null;
    }

    @Override
    public void messageArrived(String topic, MqttMessage one) {
        inbox.add(new Message(topic, one.getPayload(), one.getQos(), one.isRetained(), one));
    }

    @Override
    public void connectionLost(Throwable cause) {
        lost.countDown();
    }

    @Override
    public void deliveryComplete(IMqttDeliveryToken token) {}
}
