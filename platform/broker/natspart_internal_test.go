// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/test/brokers"
)

// TestManyLookAtAPart: who fixes a part and who takes it over ask for its consumer at the
// same time, each in its own goroutine. The race detector is the judge.
func TestManyLookAtAPart(t *testing.T) {
	t.Parallel()

	over, err := dialNATS(t.Context(), platform.BrokerNATSConf{URL: brokers.StartNATS(t).URL}, usualPace(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer over.close()

	if err := over.ensureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}

	made, err := over.consume(t.Context(), "topic", "subscription", func(delivery) {})
	if err != nil {
		t.Fatal(err)
	}
	defer made.quiet()

	c, ok := made.(*natsConsumer)
	if !ok {
		t.Fatalf("it is a %T", made)
	}

	var looking sync.WaitGroup
	defer looking.Wait()

	for range 4 {
		looking.Go(func() {
			if !c.fix(t.Context(), c.parts[0]) {
				t.Error("a part that is well needs fixing")
			}
		})
		looking.Go(func() {
			if !c.whole(t.Context(), c.parts[0]) {
				t.Error("a part of which nothing is out is not whole")
			}
		})
	}
}
