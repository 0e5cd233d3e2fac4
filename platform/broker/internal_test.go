// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/test/brokers"
)

// TestPropertyDialThatEnds: a server that ends a connection may be gone before its reason is read,
// and the library's reader and writer meet the end in any order. What to fix is said each
// time.
func TestPropertyDialThatEnds(t *testing.T) {
	t.Parallel()

	dials := property.Options{Runs: 100, Brief: 20}.Count()

	ca, clients := brokers.NewCA(t), brokers.NewCA(t)
	stranger := ca.Client(t, "who")
	secured := serverConfig(t, ca.Server(t), clients)
	open := &tls.Config{Certificates: secured.Certificates, MinVersion: tls.VersionTLS12}

	older := secured.Clone()
	older.MaxVersion = tls.VersionTLS12

	for name, row := range map[string]struct {
		scheme string
		own    *brokers.Cert
		serve  func(net.Conn)
		says   string
		not    string
	}{
		"no certificate":             {"amqps", nil, over(secured, closes), "broker.rabbitmq.cert_file: it is not given", "does not take"},
		"one that is refused":        {"amqps", stranger, over(secured, closes), "broker.rabbitmq.cert_file: the server does not take " + stranger.File, "not given"},
		"no certificate, TLS 1.2":    {"amqps", nil, over(older, closes), "broker.rabbitmq.cert_file: it is not given", "does not take"},
		"an end in the handshake":    {"amqps", nil, closes, "broker.rabbitmq.cert_file: it is not given, and the server may ask for it, or is ending", ""},
		"an end after it":            {"amqps", nil, over(open, closes), "broker.rabbitmq.cert_file: it is not given, and the server may ask for it, or is ending", ""},
		"a reset in the handshake":   {"amqps", stranger, heard(resets), "broker.rabbitmq.cert_file: the server does not take " + stranger.File + ", or is ending", ""},
		"a reset after it":           {"amqps", stranger, over(open, resets), "broker.rabbitmq.cert_file: the server does not take " + stranger.File + ", or is ending", ""},
		"an end after words of AMQP": {"amqps", nil, over(open, speaks), "", "cert_file"},
		"no TLS":                     {"amqp", nil, closes, "", "cert_file"},
		"a reset without TLS":        {"amqp", nil, resets, "", "cert_file"},
		"no TLS on the other side":   {"amqps", nil, speaks, "broker.rabbitmq.url: the server does not speak TLS there", "cert_file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			how := access{URL: row.scheme + "://" + listen(t, row.serve)}
			if row.scheme == "amqps" {
				how.CAFile = ca.File
			}

			if row.own != nil {
				how.CertFile, how.KeyFile = row.own.File, row.own.KeyFile
			}

			for range dials {
				_, err := how.dial()
				if err == nil {
					t.Fatal("it is connected")
				}

				_, says, _ := strings.Cut(err.Error(), ": ")
				if !strings.HasPrefix(says, row.says) || (row.not != "" && strings.Contains(says, row.not)) {
					t.Fatalf("it says %q, want %q first, and no %q", says, row.says, row.not)
				}
			}
		})
	}
}

// serverConfig asks clients for certificates of a CA.
func serverConfig(t *testing.T, own *brokers.Cert, clients *brokers.CA) *tls.Config {
	t.Helper()

	pair, err := tls.LoadX509KeyPair(own.File, own.KeyFile)
	if err != nil {
		t.Fatal(err)
	}

	pem, err := os.ReadFile(clients.File)
	if err != nil {
		t.Fatal(err)
	}

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)

	return &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	}
}

// listen serves connections, one after the other.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = listener.Close() })

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			serve(conn)
		}
	}()

	return listener.Addr().String()
}

// over puts TLS below what a server does.
func over(config *tls.Config, serve func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		upper := tls.Server(conn, config)
		if upper.Handshake() != nil {
			_ = conn.Close() // what the client has written may be unread: it is a reset then

			return
		}

		serve(upper)
	}
}

// What a URL's query says of TLS is told to belong into the settings, but for the server's name.
func TestQueryOfTheURL(t *testing.T) {
	t.Parallel()

	for query, want := range map[string]string{
		"": "mq.example.com", "?server_name_indication=rabbit": "rabbit",
		"?cacertfile=/ca.pem": "", "?certfile=/c.pem&keyfile=/k.pem": "",
	} {
		_, secured, err := access{URL: "amqps://mq.example.com/" + query}.server()

		switch {
		case want == "" && (err == nil || !strings.Contains(err.Error(), "broker.rabbitmq.url: its query names files")):
			t.Errorf("%s: %v", query, err)
		case want != "" && (err != nil || secured.ServerName != want):
			t.Errorf("%s: %+v, %v", query, secured, err)
		}
	}
}

// heard waits for a client's first byte.
func heard(serve func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = io.ReadFull(conn, make([]byte, 1))
		serve(conn)
	}
}

func closes(conn net.Conn) { _ = conn.Close() }

func resets(conn net.Conn) {
	below := conn
	if upper, ok := conn.(*tls.Conn); ok {
		below = upper.NetConn()
	}

	if raw, ok := below.(*net.TCPConn); ok {
		_ = raw.SetLinger(0)
	}

	_ = below.Close()
}

// speaks answers the client's first words as a server of another version of AMQP does.
func speaks(conn net.Conn) {
	_, _ = io.ReadFull(conn, make([]byte, len("AMQP0091")))
	_, _ = io.WriteString(conn, "AMQP\x00\x01\x00\x00")
	_ = conn.Close()
}

// TestWhatComesAtTheEnd: what is delivered while the last event is in work is not begun, nor
// acked: the broker delivers it again.
func TestWhatComesAtTheEnd(t *testing.T) {
	t.Parallel()

	metrics, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}

	var acked []int

	q := NewQueue(QueueOptions{Conf: platform.Broker{Parallelism: 2}, Topic: "topic", Subscription: "adapter", Metrics: metrics})

	// deliver event n of key a.
	deliver := func(n int) {
		body := fmt.Appendf(nil, `{"specversion":"1.0","id":"e%d","source":"/test","type":"test","partitionkey":"a","data":{"n":%d}}`, n, n)
		q.take(body, 0, func() error {
			acked = append(acked, n)

			return nil
		}, func() bool { return true })
	}

	begun, free, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ctx, end := context.WithCancel(t.Context())

	go func() {
		defer close(ended)

		q.Run(ctx, func(context.Context, cloudevents.Event) error {
			close(begun)
			<-free

			return nil
		})
	}()

	deliver(1)
	<-begun
	deliver(2)
	end()

	for stopping := false; !stopping; {
		q.mu.Lock()
		stopping = q.stopping
		q.mu.Unlock()
	}

	deliver(3)

	close(free)
	<-ended
	// The same as what is in line: it is not folded into what will not be handled.
	deliver(2)

	if want := []int{1}; !slices.Equal(acked, want) {
		t.Errorf("acked %v, want %v", acked, want)
	}

	if held := testutil.ToFloat64(metrics.held.WithLabelValues("topic", "adapter")); held != 0 {
		t.Errorf("%v events are held at the end", held)
	}
}

// TestTroubles: each counts for a minute after it was last met, or until it is over.
func TestTroubles(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var known troubles

		is := func(when, want string) {
			t.Helper()

			got := ""
			if err := known.err(); err != nil {
				got = err.Error()
			}

			if got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}

		known.note("publish", errors.New("denied"))
		known.note("publish", errors.New("lost"))
		known.note("consume", errors.New("gone"))
		is("at once", "gone\nlost")

		time.Sleep(troubleKept / 2)
		known.note("consume", errors.New("gone"))
		time.Sleep(troubleKept/2 + time.Second)
		is("a minute later", "gone")

		known.note("consume", nil)
		is("when all is over", "")
	})
}
