// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hyperfleet/hyperfleet/test/brokers"
)

// TestLostInNATS: what subscriptions and publishers use is taken away while they run. They
// make it anew.
func TestLostInNATS(t *testing.T) {
	t.Parallel()

	for name, lose := range map[string]func(*testing.T, *brokers.Server) error{
		"consumers deleted by hand": func(t *testing.T, server *brokers.Server) error {
			t.Helper()

			stream, err := onJetStream(t, server).Stream(t.Context(), "hyperfleet")
			if err != nil {
				return err
			}

			names := stream.ConsumerNames(t.Context())
			for consumer := range names.Name() {
				if err := stream.DeleteConsumer(t.Context(), consumer); err != nil {
					return err
				}
			}

			return names.Err()
		},
		"streams deleted by hand": func(t *testing.T, server *brokers.Server) error {
			t.Helper()

			js := onJetStream(t, server)

			streams := js.StreamNames(t.Context())
			for stream := range streams.Name() {
				if err := js.DeleteStream(t.Context(), stream); err != nil {
					return err
				}
			}

			return streams.Err()
		},
		"a server that comes back without its disk": func(t *testing.T, server *brokers.Server) error {
			t.Helper()

			server.Kill(t)
			server.Wipe(t)
			server.Restart(t)

			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			where := natsSite(t)
			publisher, subscriber, topic, r := where.open(t, nil), where.open(t, nil), topicOf(t), newRecord(t)

			end := subscribe(t, subscriber, topic, "adapter", r.handle)
			reaches(t, subscriber, topic, r)

			if err := lose(t, where.server); err != nil {
				t.Fatal(err)
			}

			r.forget()
			reaches(t, publisher, topic, r)
			well(t, publisher)
			well(t, subscriber)
			end()
		})
	}
}

func onJetStream(t *testing.T, server *brokers.Server) jetstream.JetStream {
	t.Helper()

	conn, err := nats.Connect(server.URL)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(conn.Close)

	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}

	return js
}
