// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"bytes"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/broker"
)

// FuzzDelivery: whatever is in the broker is handled as an event or becomes a dead letter
// that says what it was, and what comes after it is handled.
func FuzzDelivery(f *testing.F) {
	for _, body := range []string{
		"", "null", "{}", "[1]", "\x00\xff", `{"specversion":"1.0"}`, `{"specversion":"2.0","id":"a","source":"b","type":"c"}`,
		`{"specversion":"1.0","id":"a","source":"b","type":"c","partitionkey":7,"traceparent":"x"}`,
		`{"specversion":"1.0","id":"a","source":"b","type":"c","data_base64":"?"}`,
		`{"specversion":"1.0","id":"a","source":"b","type":"c","DATA":1,"x y":2}`,
	} {
		f.Add([]byte(body))
	}

	f.Fuzz(func(t *testing.T, body []byte) {
		b := newLocal(t, platform.Broker{Parallelism: 1})
		came, dead := make(chan cloudevents.Event, 2), make(chan cloudevents.Event, 2)

		subscribe(t, b, "fuzz"+broker.DeadLetterSuffix, "dead", into(dead))
		subscribe(t, b, "fuzz", "adapter", into(came))

		if err := b.PublishRaw(t.Context(), "fuzz", body); err != nil {
			t.Fatal(err)
		}

		select {
		case <-t.Context().Done():
			t.Fatal("it is nowhere")
		case e := <-came:
			if err := e.Validate(); err != nil {
				t.Errorf("handled: %v", err)
			}
		case e := <-dead:
			if e.Type() != broker.TypeMalformed || !bytes.Equal(e.Data(), body) {
				t.Errorf("dead letter %v of %q", e, body)
			}
		}
	})
}
