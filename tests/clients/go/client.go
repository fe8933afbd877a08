package main

import (
	"fmt"
	"sync"
	"time"
)

// Longer than any step takes on a busy machine.
const deadline = 20 * time.Second

type message struct {
	topic    string
	text     string
	qos      byte
	retained bool
	raw      any
}

// What the scenario asks of a library, whichever it is. Errors end the program.
type client interface {
	subscribe(filter string, qos byte)
	// publish does not wait; settle waits for every acknowledgement.
	publish(topic, text string, qos byte, retain bool)
	settle()
	take(count int) []message
	present() bool
	end()
	// ended waits until the broker has ended the connection and gives its reason code, nil before MQTT 5.
	ended() any
}

type options struct {
	session bool
	will    string
}

type opener func(id string, given options) client

// Messages in the order in which the library handed them over.
type inbox struct {
	mutex    sync.Mutex
	messages []message
	changed  chan struct{}
}

func newInbox() *inbox {
	return &inbox{changed: make(chan struct{}, 1)}
}

func (box *inbox) put(one message) {
	box.mutex.Lock()
	box.messages = append(box.messages, one)
	box.mutex.Unlock()
	select {
	case box.changed <- struct{}{}:
	default:
	}
}

func (box *inbox) take(count int) []message {
	late := time.After(deadline)
	for {
		box.mutex.Lock()
		if len(box.messages) >= count {
			found := box.messages
			box.messages = nil
			box.mutex.Unlock()
			return found
		}
		came := len(box.messages)
		box.mutex.Unlock()
		select {
		case <-box.changed:
		case <-late:
			fail(fmt.Errorf("not within %s: %d messages, %d came", deadline, count, came))
		}
	}
}
