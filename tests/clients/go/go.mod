module embermq/tests/clients

go 1.19

require (
	github.com/eclipse/paho.golang v0.12.0
	github.com/eclipse/paho.mqtt.golang v1.4.3
	github.com/gorilla/websocket v1.5.0
)

require (
	golang.org/x/net v0.17.0 // indirect
	golang.org/x/sync v0.4.0 // indirect
)
