// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package listcache_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/kit/listcache"
)

var errListFailed = errors.New("no listing")

func TestSharedRespectsMaxAge(t *testing.T) {
	clk := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	made := 0
	shared := listcache.Cache[int]{Clock: clk, Timeout: time.Minute, List: func(context.Context) (int, error) {
		made++

		return made, nil
	}}

	get := func(reason string, maxAge time.Duration, want int) {
		t.Helper()

		got, err := shared.Get(t.Context(), maxAge)
		if err != nil || got != want {
			t.Errorf("%s: got listing %d, %v, want %d", reason, got, err, want)
		}
	}

	if _, have := shared.Age(); have {
		t.Error("a result exists before the first call")
	}

	get("the first", time.Hour, 1)
	clk.SetTime(clk.Now().Add(time.Minute))
	get("young enough", time.Minute, 1)
	get("too old", time.Minute-1, 2)

	if age, have := shared.Age(); !have || age != 0 {
		t.Errorf("age: got %s, %t, want 0", age, have)
	}

	shared.Update(func(n int) int { return 10 * n })
	get("changed", time.Minute, 20)
	shared.Invalidate()
	get("forgotten", time.Hour, 3)
}

func TestSharedIsListedOnce(t *testing.T) {
	var made atomic.Int32

	startedAt, finish := make(chan struct{}), make(chan struct{})
	shared := listcache.Cache[int32]{
		Clock: testclock.NewFakePassiveClock(time.Unix(1000, 0)), Timeout: time.Minute,
		List: func(context.Context) (int32, error) {
			close(startedAt)
			<-finish

			return made.Add(1), nil
		},
	}

	impatient, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)

	go func() {
		_, err := shared.Get(impatient, 0)
		gone <- err
	}()

	<-startedAt
	leave()

	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("who went away got %v", err)
	}

	var all sync.WaitGroup

	for range 10 {
		all.Go(func() {
			if got, err := shared.Get(t.Context(), 0); err != nil || got != 1 {
				t.Errorf("got listing %d, %v, want the one that was under way", got, err)
			}
		})
	}

	close(finish)
	all.Wait()
}

func TestSharedReturnsReason(t *testing.T) {
	refused := errors.New("not now")
	may := refused
	shared := listcache.Cache[int]{
		Clock: testclock.NewFakePassiveClock(time.Unix(1000, 0)), Timeout: time.Minute,
		CheckAllowed: func() error { return may },
		List:         func(context.Context) (int, error) { return 0, errListFailed },
	}

	if _, err := shared.Get(t.Context(), 0); !errors.Is(err, refused) {
		t.Errorf("got %v, want an error that the call is not allowed", err)
	}

	may = nil

	if _, err := shared.Get(t.Context(), 0); !errors.Is(err, errListFailed) {
		t.Errorf("got %v, want the listing's error", err)
	}
}
