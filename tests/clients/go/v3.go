package main

import (
	"fmt"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

// MQTT 3.1 and 3.1.1.
type v3 struct {
	*inbox
	mqtt   mqtt.Client
	sent   []mqtt.Token
	lost   chan error
	resume bool
}

func wait(token mqtt.Token) {
	if !token.WaitTimeout(deadline) {
		fail(fmt.Errorf("not acknowledged within %s", deadline))
	}
	fail(token.Error())
}

func openV3(config configuration, id string, given options) client {
	opened := &v3{inbox: newInbox(), lost: make(chan error, 1)}
	wanted := mqtt.NewClientOptions().
		AddBroker(config.URL).
		SetClientID(config.Name + id).
		SetProtocolVersion(uint(config.Version)).
		SetCleanSession(!given.session).
		SetAutoReconnect(false).
		SetConnectTimeout(deadline).
		SetTLSConfig(config.trust()).
		SetDefaultPublishHandler(func(_ mqtt.Client, one mqtt.Message) {
			opened.put(message{one.Topic(), string(one.Payload()), one.Qos(), one.Retained(), one})
		}).
		SetConnectionLostHandler(func(_ mqtt.Client, err error) { opened.lost <- err })
	if given.will != "" {
		wanted.SetWill(given.will, "gone", 1, false)
	}
	opened.mqtt = mqtt.NewClient(wanted)
	token := opened.mqtt.Connect()
	wait(token)
	opened.resume = token.(*mqtt.ConnectToken).SessionPresent()
	return opened
}

func (one *v3) subscribe(filter string, qos byte) { wait(one.mqtt.Subscribe(filter, qos, nil)) }

func (one *v3) publish(topic, text string, qos byte, retain bool) {
	one.sent = append(one.sent, one.mqtt.Publish(topic, qos, retain, text))
}

func (one *v3) settle() {
	for _, token := range one.sent {
		wait(token)
	}
	one.sent = nil
}

func (one *v3) present() bool { return one.resume }

func (one *v3) end() { one.mqtt.Disconnect(10) }

func (one *v3) ended() any {
	select {
	case <-one.lost:
	case <-time.After(deadline):
		fail(fmt.Errorf("the connection was not ended within %s", deadline))
	}
	return nil
}
