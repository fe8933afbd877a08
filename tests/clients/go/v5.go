package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/url"
	"sort"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/gorilla/websocket"
)

// MQTT 5.0. The library leaves the connection to its user.
type v5 struct {
	*inbox
	mqtt     *paho.Client
	answer   *paho.Connack
	goodbyes chan byte
}

func openV5(config configuration, id string, given options) client {
	return connectV5(config, id, given)
}

func connectV5(config configuration, id string, given options) *v5 {
	opened := &v5{inbox: newInbox(), goodbyes: make(chan byte, 1)}
	opened.mqtt = paho.NewClient(paho.ClientConfig{
		Conn:          dial(config),
		PacketTimeout: deadline,
		Router: paho.NewSingleHandlerRouter(func(one *paho.Publish) {
			opened.put(message{one.Topic, string(one.Payload), one.QoS, one.Retain, one})
		}),
		OnServerDisconnect: func(packet *paho.Disconnect) { opened.goodbyes <- packet.ReasonCode },
		OnClientError:      func(error) {},
	})
	aliases, lasting := uint16(10), uint32(600)
	packet := &paho.Connect{
		ClientID:   config.Name + id,
		CleanStart: !given.session,
		KeepAlive:  30,
		Properties: &paho.ConnectProperties{TopicAliasMaximum: &aliases, RequestProblemInfo: true},
	}
	if given.session {
		packet.Properties.SessionExpiryInterval = &lasting
	}
	if given.will != "" {
		packet.WillMessage = &paho.WillMessage{Topic: given.will, Payload: []byte("gone"), QoS: 1}
	}
	limit, stop := context.WithTimeout(context.Background(), deadline)
	defer stop()
	answer, err := opened.mqtt.Connect(limit, packet)
	fail(err)
	opened.answer = answer
	return opened
}

func (one *v5) subscribe(filter string, qos byte) { one.subscribeWith(filter, qos, nil) }

func (one *v5) subscribeWith(filter string, qos byte, properties *paho.SubscribeProperties) *paho.Suback {
	answer, err := one.mqtt.Subscribe(context.Background(), &paho.Subscribe{
		Properties:    properties,
		Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: qos}},
	})
	fail(err)
	return answer
}

// The library waits for the acknowledgement; publishing from several goroutines would lose the order.
func (one *v5) publish(topic, text string, qos byte, retain bool) {
	one.publishWith(&paho.Publish{Topic: topic, Payload: []byte(text), QoS: qos, Retain: retain})
}

func (one *v5) publishWith(packet *paho.Publish) *paho.PublishResponse {
	answer, err := one.mqtt.Publish(context.Background(), packet)
	fail(err)
	return answer
}

func (one *v5) settle() {}

func (one *v5) present() bool { return one.answer.SessionPresent }

func (one *v5) end() { fail(one.mqtt.Disconnect(&paho.Disconnect{})) }

func (one *v5) ended() any {
	select {
	case reason := <-one.goodbyes:
		return reason
	case <-time.After(deadline):
		fail(fmt.Errorf("no DISCONNECT within %s", deadline))
	}
	return nil
}

func dial(config configuration) net.Conn {
	address, err := url.Parse(config.URL)
	fail(err)
	switch address.Scheme {
	case "mqtt":
		conn, err := net.DialTimeout("tcp", address.Host, deadline)
		fail(err)
		return packets.NewThreadSafeConn(conn)
	case "mqtts":
		conn, err := tls.Dial("tcp", address.Host, config.trust())
		fail(err)
		return packets.NewThreadSafeConn(conn)
	}
	dialer := websocket.Dialer{
		TLSClientConfig:  config.trust(),
		Subprotocols:     []string{"mqtt"},
		HandshakeTimeout: deadline,
	}
	conn, response, err := dialer.Dial(config.URL, nil)
	fail(err)
	fail(response.Body.Close())
	return packets.NewThreadSafeConn(&frames{Conn: conn})
}

// A WebSocket as the stream of bytes that the library wants: every write is one binary frame.
type frames struct {
	*websocket.Conn
	mutex   sync.Mutex
	current io.Reader
}

func (one *frames) SetDeadline(at time.Time) error {
	if err := one.SetReadDeadline(at); err != nil {
		return err
	}
	return one.SetWriteDeadline(at)
}

func (one *frames) Write(data []byte) (int, error) {
	return len(data), one.WriteMessage(websocket.BinaryMessage, data)
}

func (one *frames) Read(into []byte) (int, error) {
	one.mutex.Lock()
	defer one.mutex.Unlock()
	for {
		if one.current == nil {
			_, next, err := one.NextReader()
			if err != nil {
				return 0, err
			}
			one.current = next
		}
		count, err := one.current.Read(into)
		if err != io.EOF {
			return count, err
		}
		one.current = nil
		if count > 0 {
			return count, nil
		}
	}
}

func onlyV5(config configuration) {
	properties(config)
	alias(config)
	expiry(config)
	shared(config)
	codes(config)
}

func properties(config configuration) {
	hearing, saying := connectV5(config, "a", options{}), connectV5(config, "b", options{})
	identifier, lasting, text := 7, uint32(60), byte(1)
	hearing.subscribeWith(config.Name+"/+", 1, &paho.SubscribeProperties{SubscriptionIdentifier: &identifier})
	saying.publishWith(&paho.Publish{Topic: config.Name + "/p", QoS: 1, Payload: []byte("x"), Properties: &paho.PublishProperties{
		User:            paho.UserProperties{{Key: "k", Value: "1"}, {Key: "k", Value: "2"}, {Key: "l", Value: "3"}},
		ContentType:     "text/plain",
		ResponseTopic:   "reply",
		CorrelationData: []byte{0, 1, 255},
		MessageExpiry:   &lasting,
		PayloadFormat:   &text,
	}})
	found := hearing.take(1)[0].raw.(*paho.Publish).Properties
	user, correlation := [][]string{}, []int{}
	for _, one := range found.User {
		user = append(user, []string{one.Key, one.Value})
	}
	for _, one := range found.CorrelationData {
		correlation = append(correlation, int(one))
	}
	report(line{
		"step":           "properties",
		"user":           user,
		"identifiers":    []int{*found.SubscriptionIdentifier},
		"content_type":   found.ContentType,
		"response_topic": found.ResponseTopic,
		"correlation":    correlation,
		"expiry":         *found.MessageExpiry,
		"text":           *found.PayloadFormat == 1,
	})
	hearing.end()
	saying.end()
}

func alias(config configuration) {
	topic, number := config.Name+"/alias", uint16(1)
	hearing, saying := connectV5(config, "a", options{}), connectV5(config, "b", options{})
	hearing.subscribe(topic, 1)
	for index, name := range []string{topic, "", ""} {
		saying.publishWith(&paho.Publish{
			Topic:      name,
			QoS:        1,
			Payload:    []byte(fmt.Sprint(index)),
			Properties: &paho.PublishProperties{TopicAlias: &number},
		})
	}
	heard, topics := hearing.take(3), []string{}
	for _, one := range heard {
		topics = append(topics, one.topic)
	}
	report(line{"step": "alias", "topics": topics, "numbers": numbers(heard)})
	hearing.end()
	saying.end()
}

func expiry(config configuration) {
	topic, brief := config.Name+"/expiry", uint32(1)
	before := connectV5(config, "s", options{session: true})
	before.subscribe(topic, 1)
	before.end()
	saying := connectV5(config, "b", options{})
	saying.publishWith(&paho.Publish{
		Topic: topic, QoS: 1, Payload: []byte("short"), Properties: &paho.PublishProperties{MessageExpiry: &brief},
	})
	saying.publish(topic, "lasting", 1, false)
	time.Sleep(1500 * time.Millisecond)
	after := connectV5(config, "s", options{session: true})
	payloads := []string{}
	for _, one := range after.take(1) {
		payloads = append(payloads, one.text)
	}
	report(line{"step": "expiry", "payloads": payloads})
	after.end()
	saying.end()
}

func shared(config configuration) {
	saying := connectV5(config, "b", options{})
	members := []*v5{connectV5(config, "m", options{}), connectV5(config, "n", options{})}
	for _, member := range members {
		member.subscribe("$share/g/"+config.Name+"/shared", 1)
	}
	for number := 0; number < away; number++ {
		saying.publish(config.Name+"/shared", fmt.Sprint(number), 1, false)
	}
	shares, all := []int{}, []int{}
	for _, member := range members {
		heard := member.take(away / 2)
		shares = append(shares, len(heard))
		all = append(all, numbers(heard)...)
		member.end()
	}
	sort.Ints(all)
	report(line{"step": "shared", "shares": shares, "numbers": all})
	saying.end()
}

func codes(config configuration) {
	one := connectV5(config, "a", options{})
	granted := []int{}
	for _, reason := range one.subscribeWith(config.Name+"/codes/#", 2, nil).Reasons {
		granted = append(granted, int(reason))
	}
	nobody := one.publishWith(&paho.Publish{Topic: config.Name + "/nobody", QoS: 1, Payload: []byte("x")})
	none, err := one.mqtt.Unsubscribe(context.Background(), &paho.Unsubscribe{Topics: []string{config.Name + "/none"}})
	fail(err)
	report(line{
		"step":            "codes",
		"granted":         granted,
		"no_subscriber":   nobody.ReasonCode,
		"no_subscription": none.Reasons[0],
	})
	one.end()
}
