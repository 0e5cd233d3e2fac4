// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// testLeastRights: the permissions that the reference names are enough.
func testLeastRights(t *testing.T, d *door) {
	t.Helper()

	where := &site{conf: d.inFile(t, d.as("least:"+secret))}
	testFanOut(t, where)
	testDeadLetters(t, where)
}

// testAnotherHost: the server is found where the file says later.
func testAnotherHost(t *testing.T, d *door) {
	t.Helper()

	first := forward(t, d.server.Address)
	url := d.as(user + ":" + secret)
	conf := d.inFile(t, strings.Replace(url, d.server.Address, first.address, 1))
	b, topic, r := opened(t, conf), topicOf(t), newRecord(t)

	subscribe(t, b, topic, "adapter", r.handle)
	first.end()
	ill(t, b)
	writeFile(t, conf.RabbitMQ.URLFile, url)
	well(t, b)
	reaches(t, b, topic, r)
}

// forwarder is an address that leads to another one.
type forwarder struct {
	address string
	end     func()
}

func forward(t *testing.T, target string) *forwarder {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	var (
		mu    sync.Mutex
		open  = []io.Closer{listener}
		ended bool
	)

	keep := func(conns ...net.Conn) {
		mu.Lock()
		defer mu.Unlock()

		for _, conn := range conns {
			open = append(open, conn)

			if ended {
				_ = conn.Close()
			}
		}
	}

	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}

			to, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", target)
			if err != nil {
				_ = from.Close()

				continue
			}

			keep(from, to)

			go func() { _, _ = io.Copy(to, from) }()
			go func() { _, _ = io.Copy(from, to) }()
		}
	}()

	end := func() {
		mu.Lock()
		defer mu.Unlock()

		ended = true

		for _, one := range open {
			_ = one.Close()
		}
	}
	t.Cleanup(end)

	return &forwarder{address: listener.Addr().String(), end: end}
}
