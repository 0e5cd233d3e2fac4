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
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/test/brokers"
)

// TestPropertyDialThatEnds has servers that close a connection. The connection may be gone before
// its reason was read, and the library's reader and writer may see the end in any order. The error
// has to name the setting to fix in all cases.
func TestPropertyDialThatEnds(t *testing.T) {
	t.Parallel()

	dials := property.Options{Runs: 100, Brief: 20}.RunCount()

	ca, clients := brokers.NewCA(t), brokers.NewCA(t)
	otherClient := ca.IssueClient(t, "who")
	secured := serverConfig(t, ca.IssueServer(t), clients)
	open := &tls.Config{Certificates: secured.Certificates, MinVersion: tls.VersionTLS12}

	older := secured.Clone()
	older.MaxVersion = tls.VersionTLS12

	for name, row := range map[string]struct {
		scheme   string
		own      *brokers.Cert
		serve    func(net.Conn)
		wantText string
		not      string
	}{
		"no certificate":               {"amqps", nil, serveTLS(secured, closeConn), "broker.rabbitmq.cert_file: it is not set", "rejects"},
		"a rejected certificate":       {"amqps", otherClient, serveTLS(secured, closeConn), "broker.rabbitmq.cert_file: the server rejects " + otherClient.File, "not set"},
		"no certificate, TLS 1.2":      {"amqps", nil, serveTLS(older, closeConn), "broker.rabbitmq.cert_file: it is not set", "rejects"},
		"a close in the handshake":     {"amqps", nil, closeConn, "broker.rabbitmq.cert_file: it is not set, and the server may require it, or the server is shutting down", ""},
		"a close after the handshake":  {"amqps", nil, serveTLS(open, closeConn), "broker.rabbitmq.cert_file: it is not set, and the server may require it, or the server is shutting down", ""},
		"a reset in the handshake":     {"amqps", otherClient, afterFirstByte(resetConn), "broker.rabbitmq.cert_file: the server rejects " + otherClient.File + ", or the server is shutting down", ""},
		"a reset after the handshake":  {"amqps", otherClient, serveTLS(open, resetConn), "broker.rabbitmq.cert_file: the server rejects " + otherClient.File + ", or the server is shutting down", ""},
		"a close after AMQP's version": {"amqps", nil, serveTLS(open, sendAMQPVersion), "", "cert_file"},
		"no TLS":                       {"amqp", nil, closeConn, "", "cert_file"},
		"a reset without TLS":          {"amqp", nil, resetConn, "", "cert_file"},
		"a server without TLS":         {"amqps", nil, sendAMQPVersion, "broker.rabbitmq.url: the server does not use TLS on this port", "cert_file"},
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
				_, err := how.dial(t.Context())
				if err == nil {
					t.Fatal("the connection succeeded")
				}

				_, message, _ := strings.Cut(err.Error(), ": ")
				if !strings.HasPrefix(message, row.wantText) || (row.not != "" && strings.Contains(message, row.not)) {
					t.Fatalf("error %q, want prefix %q, and not %q", message, row.wantText, row.not)
				}
			}
		})
	}
}

// serverConfig returns a configuration that requires client certificates of a CA.
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

// listen serves connections one after the other.
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

// serveTLS adds TLS below a server's protocol.
func serveTLS(config *tls.Config, serve func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		upper := tls.Server(conn, config)
		if upper.Handshake() != nil {
			_ = conn.Close() // a reset if the client's data is unread

			return
		}

		serve(upper)
	}
}

// TestQueryOfTheURL checks that TLS files in a URL's query are rejected, but that the query can set
// the server's name.
func TestQueryOfTheURL(t *testing.T) {
	t.Parallel()

	for query, want := range map[string]string{
		"": "mq.example.com", "?server_name_indication=rabbit": "rabbit",
		"?cacertfile=/ca.pem": "", "?certfile=/c.pem&keyfile=/k.pem": "",
	} {
		_, secured, err := access{URL: "amqps://mq.example.com/" + query}.resolve()

		switch {
		case want == "" && (err == nil || !strings.Contains(err.Error(), "broker.rabbitmq.url: the query of the URL names files")):
			t.Errorf("%s: %v", query, err)
		case want != "" && (err != nil || secured.ServerName != want):
			t.Errorf("%s: %+v, %v", query, secured, err)
		}
	}
}

// afterFirstByte waits for a client's first byte.
func afterFirstByte(serve func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = io.ReadFull(conn, make([]byte, 1))
		serve(conn)
	}
}

func closeConn(conn net.Conn) { _ = conn.Close() }

func resetConn(conn net.Conn) {
	below := conn
	if upper, ok := conn.(*tls.Conn); ok {
		below = upper.NetConn()
	}

	if raw, ok := below.(*net.TCPConn); ok {
		_ = raw.SetLinger(0)
	}

	_ = below.Close()
}

// sendAMQPVersion responds like a server that uses another version of AMQP.
func sendAMQPVersion(conn net.Conn) {
	_, _ = io.ReadFull(conn, make([]byte, len("AMQP0091")))
	_, _ = io.WriteString(conn, "AMQP\x00\x01\x00\x00")
	_ = conn.Close()
}

// TestDeliveriesDuringShutdown checks that an event that is delivered during the last handler call is
// neither handled nor acknowledged. The broker delivers it again.
func TestDeliveriesDuringShutdown(t *testing.T) {
	t.Parallel()

	metrics, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}

	var acked []int

	q := NewQueue(QueueOptions{Conf: platform.Broker{Parallelism: 2}, Topic: "topic", Subscription: "adapter", Metrics: metrics})

	// deliver delivers event n of key a.
	deliver := func(n int) {
		body := fmt.Appendf(nil, `{"specversion":"1.0","id":"e%d","source":"/test","type":"test","partitionkey":"a","data":{"n":%d}}`, n, n)
		q.addDelivery(body, 0, func() error {
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
		stopping = q.isStopping
		q.mu.Unlock()
	}

	deliver(3)

	close(free)
	<-ended
	// The event equals a waiting event. It must not be folded, because the waiting event will not
	// be handled.
	deliver(2)

	if want := []int{1}; !slices.Equal(acked, want) {
		t.Errorf("acked %v, want %v", acked, want)
	}

	if held := testutil.ToFloat64(metrics.held.WithLabelValues("topic", "adapter")); held != 0 {
		t.Errorf("%v events are still in progress", held)
	}
}

// TestRecordedProblems checks that a problem counts for a minute after it was last recorded, or until it is
// over.
func TestRecordedProblems(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var known problemSet

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

		known.set("publish", errors.New("denied"))
		known.set("publish", errors.New("lost"))
		known.set("consume", errors.New("gone"))
		is("at once", "gone\nlost")

		time.Sleep(problemTTL / 2)
		known.set("consume", errors.New("gone"))
		time.Sleep(problemTTL/2 + time.Second)
		is("a minute later", "gone")

		known.set("consume", nil)
		is("after both are over", "")
	})
}

// TestQueueUsesDefaults checks that a queue and a connection use the defaults of settings that are not set.
func TestQueueUsesDefaults(t *testing.T) {
	t.Parallel()

	metrics, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}

	got := NewQueue(QueueOptions{Metrics: metrics}).Conf
	got.RabbitMQ = platform.BrokerRabbit(access(got.RabbitMQ).withDefaults())

	if diff := cmp.Diff(platform.DefaultBroker(), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
