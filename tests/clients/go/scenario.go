package main

import (
	"strconv"
)

const (
	messages = 200
	away     = 20
)

func numbers(heard []message) []int {
	found := []int{}
	for _, one := range heard {
		number, err := strconv.Atoi(one.text)
		fail(err)
		found = append(found, number)
	}
	return found
}

func everyVersion(config configuration, open opener) {
	everyQoS(config, open)
	awayAndBack(config, open)
	retained(config, open)
	will(config, open)
}

func everyQoS(config configuration, open opener) {
	hearing, saying := open("a", options{}), open("b", options{})
	for qos := byte(0); qos < 3; qos++ {
		topic := config.Name + "/q/" + strconv.Itoa(int(qos))
		hearing.subscribe(topic, 2)
		for number := 0; number < messages; number++ {
			saying.publish(topic, strconv.Itoa(number), qos, false)
		}
		saying.settle()
		heard := hearing.take(messages)
		grades := []int{}
		for _, one := range heard {
			if len(grades) == 0 || grades[len(grades)-1] != int(one.qos) {
				grades = append(grades, int(one.qos))
			}
		}
		report(line{"step": "qos", "qos": qos, "numbers": numbers(heard), "grades": grades})
	}
	hearing.end()
	saying.end()
}

func awayAndBack(config configuration, open opener) {
	topic := config.Name + "/away/"
	before := open("s", options{session: true})
	before.subscribe(topic+"+", 2)
	before.end()
	saying := open("b", options{})
	for number := 0; number < away; number++ {
		qos := 1 + number%2
		saying.publish(topic+strconv.Itoa(qos), strconv.Itoa(number), byte(qos), false)
	}
	saying.settle()
	after := open("s", options{session: true})
	once, twice := []message{}, []message{}
	for _, one := range after.take(away) {
		if one.qos == 1 {
			once = append(once, one)
		} else {
			twice = append(twice, one)
		}
	}
	report(line{"step": "away", "present": after.present(), "qos1": numbers(once), "qos2": numbers(twice)})
	after.end()
	saying.end()
}

func retained(config configuration, open opener) {
	topic := config.Name + "/retained"
	saying := open("b", options{})
	saying.publish(topic, "kept", 1, true)
	saying.settle()
	first := open("a", options{})
	first.subscribe(topic, 1)
	kept := first.take(1)[0]
	saying.publish(topic, "", 1, true)
	saying.settle()
	second := open("c", options{})
	second.subscribe(topic, 1)
	saying.publish(topic, "end", 1, false)
	end := second.take(1)[0]
	report(line{
		"step":   "retained",
		"before": []any{kept.text, kept.retained},
		"after":  []any{end.text, end.retained},
	})
	saying.settle()
	first.end()
	second.end()
	saying.end()
}

func will(config configuration, open opener) {
	topic := config.Name + "/will"
	hearing := open("a", options{})
	hearing.subscribe(topic, 1)
	first := open("w", options{will: topic})
	second := open("w", options{})
	heard := hearing.take(1)[0]
	report(line{"step": "will", "payload": heard.text, "taken_over": first.ended()})
	hearing.end()
	second.end()
}
