// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/platform/broker"
)

// TestPropertyOrder publishes to a few keys; each event fails as often as was drawn, up
// to more often than it is tried.
//
// Feature: hyperfleet-operator, Property: events of a key are handled in their order and one at a time, however often they fail
func TestPropertyOrder(t *testing.T) {
	t.Parallel()

	const (
		tries    = 3
		keyCount = 4
	)

	property.Check(t, "order", property.Options{Brief: 10}, prop.ForAll(func(draws []int) bool {
		b := newLocal(t, platform.Broker{
			Parallelism: 3, MaxDeliveries: tries, MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond,
		})

		want, got, dead := map[string][]int{}, newRecord(t), newRecord(t)

		var (
			mu    sync.Mutex
			tried = map[int]int{}
		)

		wantDead := 0
		topic := topicOf(t)
		defer subscribe(t, b, topic+broker.DeadLetterSuffix, "dead", dead.handle)()
		defer subscribe(t, b, topic, "adapter", func(ctx context.Context, e cloudevents.Event) error {
			_, number := saying(t, e)

			mu.Lock()
			tried[number]++
			fails := tried[number] <= draws[number]/keyCount
			mu.Unlock()

			if fails {
				return errHandler
			}

			return got.handle(ctx, e)
		})()

		for number, draw := range draws {
			key := "key-" + strconv.Itoa(draw%keyCount)
			publish(t, b, topic, event(t, key, number))

			if draw/keyCount < tries {
				want[key] = append(want[key], number)
			} else {
				wantDead++
			}
		}

		eventually(t, "all are done", func() bool {
			return total(got.copy()) >= total(want) && total(dead.copy()) >= wantDead
		})

		if diff := cmp.Diff(want, got.copy()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)

			return false
		}

		return total(dead.copy()) == wantDead
	}, gen.SliceOfN(20, gen.IntRange(0, keyCount*(tries+1)-1))))
}
