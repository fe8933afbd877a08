// The scenario of tests/clients/README.md with the two Eclipse Paho clients for Go.
// Words: url, version (3, 4 or 5), name, and with TLS the file of the authority. It prints one JSON line a step.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

type configuration struct {
	URL     string
	Version int
	Name    string
	CA      string
}

type line map[string]any

func report(one line) {
	text, err := json.Marshal(one)
	fail(err)
	fmt.Println(string(text))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (config configuration) trust() *tls.Config {
	if config.CA == "" {
		return nil
	}
	pem, err := os.ReadFile(config.CA)
	fail(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}
}

func main() {
	version, err := strconv.Atoi(os.Args[2])
	fail(err)
	config := configuration{URL: os.Args[1], Version: version, Name: os.Args[3]}
	if len(os.Args) > 4 {
		config.CA = os.Args[4]
	}
	if config.Version == 5 {
		everyVersion(config, func(id string, given options) client { return openV5(config, id, given) })
		onlyV5(config)
	} else {
		everyVersion(config, func(id string, given options) client { return openV3(config, id, given) })
	}
	report(line{"step": "end"})
}
